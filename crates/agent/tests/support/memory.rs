//! A process's memory as far as it is its own.

/// Resident bytes without the ring's pages: these are mapped twice, and come into memory as switches
/// fill them.
pub(crate) fn without_ring(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut ring = false;
    let mut sum = 0;
    for line in text.lines() {
        if let Some(kib) = line.strip_prefix("Rss:") {
            let kib = kib.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or(0);
            sum += if ring { 0 } else { kib };
        } else if line.split_whitespace().next().is_some_and(|f| f.contains('-')) {
            ring = line.ends_with("anon_inode:bpf-map");
        }
    }
    assert!(sum > 0, "process {pid} has no memory");
    sum << 10
}
