//! Running the real binary.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The binary under test.
pub fn wattpipe() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wattpipe"));
    command.env_remove("NOTIFY_SOCKET").env_remove("OTEL_EXPORTER_OTLP_ENDPOINT");
    command
}

/// Runs it to its end.
pub fn run(args: &[&str]) -> Output {
    wattpipe().args(args).output().unwrap()
}

/// A configuration file in a directory of its own.
pub struct ConfigFile {
    dir: tempfile::TempDir,
}

impl ConfigFile {
    pub fn new(text: &str) -> Self {
        let file = Self { dir: tempfile::tempdir().unwrap() };
        file.write(text);
        file
    }

    pub fn write(&self, text: &str) {
        std::fs::write(self.path(), text).unwrap();
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("wattpipe.yaml")
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// A running agent; killed when the test ends.
pub struct Running {
    child: Child,
    log: Arc<Mutex<String>>,
    pub lines: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (log, lines) = (Arc::new(Mutex::new(String::new())), Arc::new(Mutex::new(vec![])));
        let (stderr, stdout) = (child.stderr.take().unwrap(), child.stdout.take().unwrap());
        let (to_log, to_lines) = (log.clone(), lines.clone());
        let read_log = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = to_log.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let read_lines = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                to_lines.lock().unwrap().push(line);
            }
        });
        Self { child, log, lines, readers: vec![read_log, read_lines] }
    }

    pub fn with_config(config: &ConfigFile) -> Self {
        Self::start(wattpipe().arg("--config").arg(config.path()))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until `done`, at most two minutes; what was waited for is told on failure.
    #[track_caller]
    pub fn wait_until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            assert!(begin.elapsed() < Duration::from_secs(120), "no {what}; log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub fn wait_for_windows(&self, count: usize) {
        self.wait_until("windows", |r| r.windows() >= count);
    }

    pub fn windows(&self) -> usize {
        self.lines.lock().unwrap().iter().filter(|l| l.contains("\"type\":\"window\"")).count()
    }

    /// Waits for the end and gives the exit status.
    #[track_caller]
    pub fn end(mut self) -> (Option<i32>, String) {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                for reader in self.readers.drain(..) {
                    reader.join().unwrap();
                }
                return (status.code(), self.log());
            }
            assert!(begin.elapsed() < Duration::from_secs(120), "does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One HTTP request: status and body.
fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    Some((status, text.split_once("\r\n\r\n")?.1.to_owned()))
}

/// A loopback address that nobody listens on, and that nobody else is given as long as this lives: its
/// socket is bound and does not listen. The agent may listen there.
pub struct FreeAddress {
    _socket: tokio::net::TcpSocket,
    address: std::net::SocketAddr,
}

impl FreeAddress {
    pub fn new() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        Self { address: socket.local_addr().unwrap(), _socket: socket }
    }

    /// One request, as soon as somebody listens there.
    #[track_caller]
    pub fn get(&self, agent: &Running, path: &str) -> (u16, String) {
        let address = self.to_string();
        agent.wait_until("listener", |_| TcpStream::connect(&address).is_ok());
        get(&address, path).unwrap()
    }
}

impl std::fmt::Display for FreeAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address.fmt(f)
    }
}

/// Nanoseconds since 1970 by the wall clock.
pub fn unix_now() -> u64 {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap();
    u64::try_from(now.as_nanos()).unwrap()
}
