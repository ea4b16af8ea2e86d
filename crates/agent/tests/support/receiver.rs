//! An OTLP/HTTP receiver for JSON that may be slow, and go and come back.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::Value;
use tokio::net::TcpSocket;

/// Points by the path that they were sent to.
type Inbox = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

pub(crate) struct Receiver {
    address: SocketAddr,
    /// Bound there and not listening: while the receiver is away nobody else is given its port, and
    /// no sender connects to itself.
    _held: TcpSocket,
    takes: Duration,
    inbox: Inbox,
    gone: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    /// One that takes so long for each request.
    pub(crate) fn start(takes: Duration) -> Self {
        let held = TcpSocket::new_v4().unwrap();
        held.set_reuseaddr(true).unwrap();
        held.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let mut receiver = Self {
            address: held.local_addr().unwrap(),
            _held: held,
            takes,
            inbox: Inbox::default(),
            gone: Arc::default(),
            thread: None,
        };
        receiver.come_back();
        receiver
    }

    /// Where sender `n` is to send to.
    pub(crate) fn url(&self, n: usize) -> String {
        format!("http://{}/{n}", self.address)
    }

    /// Points that sender `n` has delivered, in order.
    pub(crate) fn got(&self, n: usize) -> Vec<String> {
        let inbox = self.inbox.lock().unwrap();
        inbox.get(&format!("/{n}/v1/metrics")).cloned().unwrap_or_default()
    }

    /// From now on connections are refused.
    pub(crate) fn go(&mut self) {
        self.gone.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// Listens at the same address again.
    pub(crate) fn come_back(&mut self) {
        let listener = TcpListener::bind(self.address).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.gone = Arc::default();
        let (gone, inbox, takes) = (self.gone.clone(), self.inbox.clone(), self.takes);
        self.thread = Some(thread::spawn(move || {
            while !gone.load(SeqCst) {
                let Ok((stream, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(2));
                    continue;
                };
                let inbox = inbox.clone();
                // A sender that goes away in the middle is no concern of the receiver.
                thread::spawn(move || take(&stream, &inbox, takes));
            }
        }));
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.gone.store(true, SeqCst);
    }
}

/// One request of one connection.
fn take(stream: &TcpStream, inbox: &Inbox, takes: Duration) -> Option<()> {
    stream.set_nonblocking(false).ok()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    while line.trim() != "" {
        line.clear();
        reader.read_line(&mut line).ok()?;
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let points = points(&serde_json::from_slice(&body).ok()?);
    thread::sleep(takes);
    // What the sender has given up is not taken: it counts it as lost.
    stream.set_nonblocking(true).ok()?;
    let waits = stream.peek(&mut [0]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
    if waits {
        inbox.lock().unwrap().entry(path).or_default().extend(points);
        stream.set_nonblocking(false).ok()?;
        let mut stream = stream;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            .ok()?;
    }
    Some(())
}

/// Each point of a request, with all that tells it from others.
pub(crate) fn points(request: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut points = Vec::new();
    for resource in list(&request["resourceMetrics"]) {
        for metric in list(&resource["scopeMetrics"]).iter().flat_map(|s| list(&s["metrics"])) {
            for point in list(&metric["sum"]["dataPoints"]) {
                points.push(format!("{} {} {point}", resource["resource"], metric["name"]));
            }
        }
    }
    points
}
