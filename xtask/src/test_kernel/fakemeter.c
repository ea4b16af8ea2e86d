// SPDX-License-Identifier: GPL-2.0
/*
 * A powercap tree for tests, called as Intel's is: package-0 with core and dram in it. Each counter
 * is idle power times uptime plus busy power times the CPUs' busy time, scaled by the zone's share,
 * and wraps like a real one.
 */
#include <linux/cpumask.h>
#include <linux/err.h>
#include <linux/kernel_stat.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/powercap.h>

#define IDLE_MILLIWATTS 10000ULL
#define BUSY_MILLIWATTS 20000ULL
#define RANGE_MICROJOULES 262143328850ULL

struct meter {
	struct powercap_zone zone;
	const char *name;
	unsigned int percent;
};

static struct meter meters[] = {
	{ .name = "package-0", .percent = 100 },
	{ .name = "core", .percent = 60 },
	{ .name = "dram", .percent = 15 },
};

static struct powercap_control_type *control;

static u64 busy_microseconds(void)
{
	static const int kinds[] = { CPUTIME_USER, CPUTIME_NICE, CPUTIME_SYSTEM,
				     CPUTIME_SOFTIRQ, CPUTIME_IRQ };
	u64 sum = 0;
	int cpu, i;

	for_each_possible_cpu(cpu)
		for (i = 0; i < ARRAY_SIZE(kinds); i++)
			sum += kcpustat_cpu(cpu).cpustat[kinds[i]];
	return div_u64(sum, 1000);
}

static int energy(struct powercap_zone *zone, u64 *value)
{
	struct meter *meter = container_of(zone, struct meter, zone);
	u64 sum = div_u64(ktime_to_us(ktime_get()) * IDLE_MILLIWATTS, 1000) +
		  div_u64(busy_microseconds() * BUSY_MILLIWATTS, 1000);

	div64_u64_rem(div_u64(sum * meter->percent, 100), RANGE_MICROJOULES, value);
	return 0;
}

static int range(struct powercap_zone *zone, u64 *value)
{
	*value = RANGE_MICROJOULES;
	return 0;
}

static int release(struct powercap_zone *zone)
{
	return 0;
}

static const struct powercap_zone_ops operations = {
	.get_energy_uj = energy,
	.get_max_energy_range_uj = range,
	.release = release,
};

/* The limits that a zone must have: 95 W over 28 s, not to be changed. */
static int get_limit(struct powercap_zone *zone, int id, u64 *microwatts)
{
	*microwatts = 95000000;
	return 0;
}

static int get_window(struct powercap_zone *zone, int id, u64 *microseconds)
{
	*microseconds = 28000000;
	return 0;
}

static int set_nothing(struct powercap_zone *zone, int id, u64 value)
{
	return -EPERM;
}

static const char *limit_name(struct powercap_zone *zone, int id)
{
	return "long_term";
}

static const struct powercap_zone_constraint_ops limits = {
	.get_power_limit_uw = get_limit,
	.set_power_limit_uw = set_nothing,
	.get_time_window_us = get_window,
	.set_time_window_us = set_nothing,
	.get_name = limit_name,
};

static void remove_all(int count)
{
	while (count-- > 0)
		powercap_unregister_zone(control, &meters[count].zone);
	powercap_unregister_control_type(control);
}

static int __init meter_init(void)
{
	int i;

	control = powercap_register_control_type(NULL, "intel-rapl", NULL);
	if (IS_ERR(control))
		return PTR_ERR(control);
	for (i = 0; i < ARRAY_SIZE(meters); i++) {
		struct powercap_zone *parent = i ? &meters[0].zone : NULL;
		struct powercap_zone *zone = powercap_register_zone(
			&meters[i].zone, control, meters[i].name, parent, &operations, 1, &limits);

		if (IS_ERR(zone)) {
			remove_all(i);
			return PTR_ERR(zone);
		}
	}
	return 0;
}

static void __exit meter_exit(void)
{
	remove_all(ARRAY_SIZE(meters));
}

module_init(meter_init);
module_exit(meter_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Powercap zones for tests");
