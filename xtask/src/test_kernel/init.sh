#!/bin/sh
# The guest's first process: runs every test and says for each how it went, then powers off.
export PATH=/bin HOME=/tmp WATTPIPE=/test/wattpipe WATTPIPE_GUEST=1
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t tracefs trace /sys/kernel/tracing
mount -t cgroup2 cgroup /sys/fs/cgroup
ulimit -l unlimited
echo 1 > /proc/sys/kernel/printk
echo "GUEST $(uname -r) $(uname -m) $(cut -d' ' -f1 /proc/uptime) s after its start"

# A test that hangs must not take those after it along: it is ended, after it was told where it hangs.
LIMIT=600

cell() {
    name=$1
    shift
    "$@" 2>&1 &
    test=$!
    (
        sleep $LIMIT
        echo "panicked at its limit:"
        echo "not done after $LIMIT s"
        for task in /proc/[0-9]*/task/[0-9]*; do
            [ -n "$(cat "$task/cmdline" 2>/dev/null)" ] || continue
            echo "$task $(cat "$task/comm" "$task/syscall" 2>/dev/null | tr '\n' ' ')"
            cat "$task/stack" 2>/dev/null
        done
        kill -9 -1
    ) &
    limit=$!
    if wait $test; then
        echo "CELL $name ok"
    else
        dmesg | tail -n 20
        echo "CELL $name failed"
    fi
    kill $limit 2>/dev/null
}

cd /test
cell source_tests /test/source --test-threads=2 --quiet
# Not here: comparisons to the nanosecond, as emulation stretches a switch, and the names of programs
# after exec, as all programs of the guest are one busybox.
cell probe /test/source --ignored --nocapture --test-threads=1 kernel_tests --skip clock:: --skip exec_keeps
cell windows /test/guest --ignored windows_add_up
# A hardware counter's device is there, or the machine has none.
if ls /sys/bus/event_source/devices | grep -q -e '^cpu$' -e '^armv8'; then
    cell cycles /test/guest --ignored cycles_are_counted
    cell cycles_after_hotplug /test/guest --ignored cycles_come_back
else
    cell no_cycles /test/guest --ignored cycles_that_cannot_be_counted_are_told
fi
cell hotplug /test/guest --ignored a_cpu_goes_off
cell stopped_reader /test/faults --ignored a_stopped_reader
cell detached /test/faults --ignored every_end_detaches
cell clocks /test/guest --ignored clocks_may_jump
if ls /test/modules/*.ko > /dev/null 2>&1; then
    insmod /test/modules/fakemeter.ko
    cell powercap /test/guest --ignored powercap_is_read
fi
echo "GUEST DONE $(cut -d' ' -f1 /proc/uptime)"
poweroff -f
