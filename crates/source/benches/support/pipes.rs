//! Two processes that wake each other by pipes: nothing but switches.

use std::{
    fs::File,
    io::{Read, Write},
    process::{Command, Stdio},
};

/// The argument by which this program is started again as the other end.
pub const ECHO: &str = "--echo";

/// So many round trips of one byte.
pub fn ping_pong(trips: u64) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg(ECHO)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut byte = [7];
    for _ in 0..trips {
        to.write_all(&byte).unwrap();
        from.read_exact(&mut byte).unwrap();
    }
    drop(to);
    child.wait().unwrap();
}

/// The other end: gives each byte back until there are no more.
pub fn echo() {
    // Straight to the pipes, without the buffer of `Stdout`.
    let (mut from, mut to) = (std::io::stdin().lock(), File::options());
    let mut to = to.write(true).open("/proc/self/fd/1").unwrap();
    let mut byte = [0];
    while from.read_exact(&mut byte).is_ok() {
        to.write_all(&byte).unwrap();
    }
}
