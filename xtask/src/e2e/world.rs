//! Running programs for a test and talking to them over loopback.

use std::{
    fs::File,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command},
    sync::atomic::{AtomicU16, Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

/// A program that ends with its owner.
pub(super) struct Program {
    name: String,
    child: Child,
}

impl Program {
    /// Starts it; its output goes to `NAME.log` in `run`.
    pub(super) fn start(command: &mut Command, name: &str, run: &Path) -> Result<Self> {
        let log = File::create(run.join(format!("{name}.log")))?;
        let child = command
            .current_dir(run)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child })
    }

    /// Waits for a successful end.
    pub(super) fn wait(&mut self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "{}: {status}; see its log", self.name);
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{} is still running after {patience:?}", self.name)
    }

    pub(super) fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A port nobody listens on, another one each time. It is below those that Linux gives to outgoing
/// connections (from 32768 on): whoever is to listen there may start late and still find it free.
pub(crate) fn port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = u16::try_from(std::process::id() % 8000)?;
    for _ in 0..10_000 {
        let port = 20_000 + (begin + NEXT.fetch_add(1, Relaxed)) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free between 20000 and 30000")
}

/// Waits until somebody listens.
pub(crate) fn wait_for(port: u16, patience: Duration) -> Result<()> {
    let until = Instant::now() + patience;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(Instant::now() < until, "nobody listens on port {port}; see the logs");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Tries until it succeeds; in the end its last error counts.
pub(crate) fn patiently<T>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let until = Instant::now() + patience;
    loop {
        match attempt() {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(200)),
            outcome => return outcome,
        }
    }
}

/// The body of a page.
pub(crate) fn get(port: u16, path: &str, accept: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    // HTTP/1.0: the answer ends with the connection and comes in one piece.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    ensure!(head.contains(" 200 "), "{path}: {}", head.lines().next().unwrap_or_default());
    Ok(body.to_owned())
}
