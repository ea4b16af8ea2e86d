//! What churns around the agent, and a receiver with moods.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Result;

fn running(stop: &AtomicBool) -> bool {
    !stop.load(Ordering::Acquire)
}

/// Bursts of 200 processes that do nothing.
pub(super) fn storms(stop: &AtomicBool) {
    while running(stop) {
        for _ in 0..20 {
            let children: Vec<_> =
                (0..10).filter_map(|_| Command::new("/bin/true").spawn().ok()).collect();
            for mut child in children {
                let _ = child.wait();
            }
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Cgroups, as containers have them, that live for a moment.
pub(super) fn cgroups(stop: &AtomicBool) {
    let v1 = Path::new("/sys/fs/cgroup/cpuacct");
    let root = if v1.exists() { v1 } else { Path::new("/sys/fs/cgroup") };
    let mut number = 0_u64;
    while running(stop) {
        number += 1;
        let cgroup = root.join(format!("docker-{number:064x}.scope"));
        if fs::create_dir(&cgroup).is_err() {
            eprintln!("no cgroup can be made in {}", root.display());
            return;
        }
        if let Ok(mut child) = Command::new("sleep").arg("0.2").stdout(Stdio::null()).spawn() {
            let _ = fs::write(cgroup.join("cgroup.procs"), child.id().to_string());
            let _ = child.wait();
        }
        while fs::remove_dir(&cgroup).is_err() {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Two threads that hand a token to one another, with a little work: switches all the time.
pub(super) fn spin_and_talk(stop: &AtomicBool) {
    let (to, from) = std::sync::mpsc::sync_channel::<()>(0);
    thread::scope(|scope| {
        scope.spawn(move || while from.recv().is_ok() {});
        while running(stop) {
            for _ in 0..100 {
                let _ = to.send(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        drop(to);
    });
}

/// How the receiver behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    Accepts = 0,
    /// 503, to be tried again.
    Refuses = 1,
    /// Connections are closed without a word.
    Gone = 2,
}

/// An OTLP/HTTP receiver that looks at nothing.
pub(super) struct Receiver {
    pub(super) port: u16,
    mood: Arc<AtomicU8>,
    answers: Arc<AtomicU64>,
}

impl Receiver {
    pub(super) fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let (mood, answers) = (Arc::<AtomicU8>::default(), Arc::<AtomicU64>::default());
        let (for_thread, counter) = (Arc::clone(&mood), Arc::clone(&answers));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (mood, answers) = (Arc::clone(&for_thread), Arc::clone(&counter));
                thread::spawn(move || {
                    let _ = serve(stream, &mood, &answers);
                });
            }
        });
        Ok(Self { port, mood, answers })
    }

    pub(super) fn mood(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::Relaxed);
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

/// Requests of one connection: as much of HTTP/1.1 as one client needs.
fn serve(mut stream: TcpStream, mood: &AtomicU8, answers: &AtomicU64) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    let mut chunk = [0; 16 << 10];
    loop {
        let head = loop {
            if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            let read = stream.read(&mut chunk)?;
            if read == 0 {
                return Ok(());
            }
            buffer.extend_from_slice(&chunk[..read]);
        };
        let length = String::from_utf8_lossy(&buffer[..head])
            .to_ascii_lowercase()
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok())
            .unwrap_or(0);
        while buffer.len() < head + length {
            let read = stream.read(&mut chunk)?;
            if read == 0 {
                return Ok(());
            }
            buffer.extend_from_slice(&chunk[..read]);
        }
        buffer.drain(..head + length);
        let answer: &[u8] = match mood.load(Ordering::Relaxed) {
            0 => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            1 => b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
            _ => return Ok(()),
        };
        stream.write_all(answer)?;
        answers.fetch_add(1, Ordering::Relaxed);
    }
}
