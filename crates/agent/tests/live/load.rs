//! The processes of the load. The test's own executable plays them, under names that tell.
//!
//! Each works until it has done so for [`SECONDS`] (or until it is told to stop), then blocks on its
//! standard input so that what the kernel has counted for it can be read, then ends.

use std::{
    env, fs,
    io::{Read, Write},
    os::unix::{fs::symlink, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Which part a process plays.
const ROLE: &str = "WATTPIPE_LOAD";
/// For how long, in milliseconds.
const MILLIS: &str = "WATTPIPE_LOAD_MS";

/// How long the load works unless a test says otherwise.
pub const SECONDS: u64 = 10;

/// A process of the load.
pub struct Player {
    pub name: String,
    pub child: Child,
    pub input: Option<ChildStdin>,
    pub output: Option<ChildStdout>,
}

impl Player {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to begin.
    pub fn begin(&mut self) {
        self.input.as_mut().expect("its standard input").write_all(b"b").expect("it listens");
    }

    /// Waits for the byte that says the work is done.
    pub fn done(&mut self) {
        let mut byte = [0];
        self.output.as_mut().expect("its output").read_exact(&mut byte).expect("it works");
    }

    /// Lets it end, and waits for that.
    pub fn end(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder with the test's executable under the names of the roles.
pub struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    fn as_name(&self, program: &Path, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        if !path.exists() {
            symlink(program, &path).expect("a link");
        }
        path
    }

    /// Starts `role` under the name `name`; it waits for `begin`.
    pub fn start(&self, role: &str, name: &str, millis: u64) -> Player {
        if role == "shorts" {
            // Not while they run: a new file may cost more than a process.
            for number in 0..SHORTS {
                self.as_name(Path::new("/bin/true"), &short_name(number));
            }
        }
        let program = self.as_name(&env::current_exe().expect("this program"), name);
        let mut child = Command::new(program)
            .env(ROLE, role)
            .env(MILLIS, millis.to_string())
            .env("WATTPIPE_LOAD_DIR", self.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Player { name: name.to_owned(), child, input, output }
    }
}

/// Plays a role, when this process was started for one.
pub fn play() -> Option<ExitCode> {
    let role = env::var(ROLE).ok()?;
    let millis = env::var(MILLIS).ok().and_then(|m| m.parse().ok()).unwrap_or(SECONDS * 1000);
    if role != "exec-again" && role != "pong" {
        wait_byte();
    }
    let end = Instant::now() + Duration::from_millis(millis);
    match role.as_str() {
        "spin" => spin_until(end),
        "sleep" => sleep_until(end),
        "ping" => return ping(end),
        "pong" => return pong(),
        "threads" => threads(end),
        "exec" | "exec-again" => exec(millis),
        "leader" => leader_ends(end),
        "shorts" => shorts(end),
        "storm" => storm(end),
        other => panic!("no such role: {other}"),
    }
    say_done();
    wait_end();
    Some(ExitCode::SUCCESS)
}

fn wait_byte() {
    let _ = std::io::stdin().read(&mut [0]);
}

fn wait_end() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn say_done() {
    let mut out = std::io::stdout();
    let _ = out.write_all(b"d").and_then(|()| out.flush());
}

fn spin_for(time: Duration) {
    spin_until(Instant::now() + time);
}

fn spin_until(end: Instant) {
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Mostly asleep: a millisecond of sleep, 50 µs of work.
fn sleep_until(end: Instant) {
    while Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
        spin_for(Duration::from_micros(50));
    }
}

/// A byte to and fro over two pipes, with a little work at each end, so that a trace of it all fits.
fn ping(end: Instant) -> Option<ExitCode> {
    let mut other = Command::new(env::current_exe().expect("this program"))
        .arg0("pong")
        .env(ROLE, "pong")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut to = other.stdin.take().expect("its input");
    let mut from = other.stdout.take().expect("its output");
    while Instant::now() < end {
        to.write_all(b"x").and_then(|()| from.read_exact(&mut [0])).expect("the other side");
        spin_for(Duration::from_micros(20));
    }
    // The other side lives as long as this one, so that both can be looked at.
    say_done();
    wait_end();
    drop(to);
    let _ = other.wait();
    Some(ExitCode::SUCCESS)
}

fn pong() -> Option<ExitCode> {
    // Without the buffers of std's stdin and stdout.
    let mut input =
        fs::File::from(std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned().ok()?);
    let mut output =
        fs::File::from(std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned().ok()?);
    let mut byte = [0];
    while matches!(input.read(&mut byte), Ok(1)) {
        spin_for(Duration::from_micros(20));
        if output.write_all(&byte).is_err() {
            break;
        }
    }
    Some(ExitCode::SUCCESS)
}

/// Threads that work, sleep, and hand a token to one another; they stay until the process ends, as
/// what a thread has used goes with it.
fn threads(end: Instant) {
    let (done, all) = mpsc::channel();
    let stay = move || {
        let _ = done.send(());
        loop {
            thread::park();
        }
    };
    for _ in 0..2 {
        let stay = stay.clone();
        thread::spawn(move || {
            spin_until(end);
            stay();
        });
    }
    let sleeper = stay.clone();
    thread::spawn(move || {
        sleep_until(end);
        sleeper();
    });
    let (ping, at_pong) = mpsc::sync_channel::<()>(0);
    let (pong, at_ping) = mpsc::sync_channel::<()>(0);
    let second = stay.clone();
    thread::spawn(move || {
        while at_pong.recv().is_ok() && pong.send(()).is_ok() {
            spin_for(Duration::from_micros(20));
        }
        second();
    });
    thread::spawn(move || {
        while Instant::now() < end && ping.send(()).is_ok() && at_ping.recv().is_ok() {
            spin_for(Duration::from_micros(20));
        }
        drop(ping);
        stay();
    });
    for _ in 0..5 {
        let _ = all.recv();
    }
}

/// Works a little and becomes itself again by `exec`, under two names in turn, ten times a second;
/// every other time it is not the first thread that does it.
fn exec(millis: u64) {
    const STEP: u64 = 100;
    spin_for(Duration::from_millis(STEP / 4));
    thread::sleep(Duration::from_millis(3 * STEP / 4));
    let left = millis.saturating_sub(STEP);
    if left == 0 {
        return;
    }
    let again = move || {
        let name = if (left / STEP).is_multiple_of(2) { "exec-even" } else { "exec-odd" };
        let dir = PathBuf::from(env::var_os("WATTPIPE_LOAD_DIR").expect("the folder of names"));
        let path = dir.join(name);
        let _ = symlink(fs::read_link(dir.join("exec")).expect("the link"), &path);
        let error = Command::new(path).env(ROLE, "exec-again").env(MILLIS, left.to_string()).exec();
        panic!("exec: {error}");
    };
    if env::var_os("WATTPIPE_LOAD_THREAD_EXEC").is_some() && (left / STEP).is_multiple_of(2) {
        let _ = thread::spawn(again).join();
    } else {
        again();
    }
}

/// The first thread ends; two others work on.
fn leader_ends(end: Instant) {
    for last in [false, true] {
        thread::spawn(move || {
            spin_until(end + Duration::from_millis(u64::from(last) * 50));
            if last {
                say_done();
                wait_end();
                std::process::exit(0);
            }
            loop {
                thread::park();
            }
        });
    }
    spin_for(Duration::from_millis(100));
    #[expect(unsafe_code, reason = "the standard library cannot end its first thread alone")]
    // SAFETY: no frame below holds anything that has to be dropped.
    unsafe {
        nix::libc::syscall(nix::libc::SYS_exit, 0)
    };
    unreachable!("the first thread has ended");
}

/// 500 processes that live for a moment, spread over the time, each under a name of its own.
pub const SHORTS: usize = 500;

pub fn short_name(number: usize) -> String {
    format!("short-{number:03}")
}

fn shorts(end: Instant) {
    let dir = PathBuf::from(env::var_os("WATTPIPE_LOAD_DIR").expect("the folder of names"));
    let begin = Instant::now();
    let total = end - begin;
    for number in 0..SHORTS {
        let path = dir.join(short_name(number));
        let status = Command::new(&path).status().expect("a process");
        assert!(status.success());
        let next = begin + total * u32::try_from(number).unwrap_or(0) / 500;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// As many short processes as one parent can start.
fn storm(end: Instant) {
    while Instant::now() < end {
        let children: Vec<_> =
            (0..16).filter_map(|_| Command::new("/bin/true").spawn().ok()).collect();
        for mut child in children {
            let _ = child.wait();
        }
    }
}
