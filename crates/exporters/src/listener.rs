//! Listening for scrapers and probes: a few connections at a time. Whoever opens connections by the
//! thousand must not take the descriptors that measuring needs, nor keep others from being served:
//! where there are too many, the one on which nothing has moved for longest makes way.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Instant,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 64;

/// See the module's documentation.
#[derive(Debug)]
pub struct Few {
    tcp: TcpListener,
    max: usize,
    open: Open,
}

type Open = Arc<Mutex<Vec<Arc<Mutex<Seat>>>>>;

/// What is known of a connection.
#[derive(Debug)]
struct Seat {
    moved: Instant,
    evicted: bool,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Few {
    /// Binds `endpoint`.
    ///
    /// # Errors
    /// As binding does.
    pub async fn bind(endpoint: &str) -> io::Result<Self> {
        Ok(Self::of(TcpListener::bind(endpoint).await?, MAX_CONNECTIONS))
    }

    fn of(tcp: TcpListener, max: usize) -> Self {
        Self { tcp, max, open: Open::default() }
    }

    /// A place for one more connection.
    fn seat(&self) -> Arc<Mutex<Seat>> {
        let mut open = lock(&self.open);
        if open.len() >= self.max
            && let Some(at) = (0..open.len()).min_by_key(|at| lock(&open[*at]).moved)
        {
            let evicted = open.swap_remove(at);
            let mut evicted = lock(&evicted);
            evicted.evicted = true;
            evicted.waker.take().into_iter().for_each(Waker::wake);
        }
        let seat = Seat { moved: Instant::now(), evicted: false, waker: None };
        let seat = Arc::new(Mutex::new(seat));
        open.push(seat.clone());
        seat
    }
}

impl Listener for Few {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.tcp).await;
        (Connection { stream, seat: self.seat(), open: self.open.clone() }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// One of them.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    seat: Arc<Mutex<Seat>>,
    open: Open,
}

impl Drop for Connection {
    fn drop(&mut self) {
        lock(&self.open).retain(|seat| !Arc::ptr_eq(seat, &self.seat));
    }
}

impl Connection {
    /// What came of an attempt to read or write, or the end where this one is to make way.
    fn watch<T>(&self, cx: &Context<'_>, moved: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let mut seat = lock(&self.seat);
        if moved.is_ready() {
            seat.moved = Instant::now();
            return moved;
        }
        if seat.evicted {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        seat.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let moved = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.watch(cx, moved)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, moved)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream as Plain,
    };

    use axum::{Router, routing::get};

    use super::*;

    /// Asks on a connection of its own, or again on one that is kept.
    fn ask(stream: &mut Plain) -> io::Result<bool> {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let mut text = Vec::new();
        let mut part = [0; 512];
        while !text.ends_with(b"here") {
            match stream.read(&mut part)? {
                0 => return Ok(false),
                n => text.extend_from_slice(&part[..n]),
            }
        }
        Ok(true)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_says_nothing_makes_way() {
        // The scraper and two that came after it last moved: the fourth is older.
        let few = Few::of(TcpListener::bind("127.0.0.1:0").await.unwrap(), 4);
        let (address, open) = (few.local_addr().unwrap(), few.open.clone());
        let app = Router::new().route("/", get(async || "here"));
        tokio::spawn(async move { axum::serve(few, app).await });
        let clients = move || {
            let mut scraper = Plain::connect(address).unwrap();
            assert!(ask(&mut scraper).unwrap());
            let mut idle = Vec::new();
            for _ in 0..20 {
                idle.push(Plain::connect(address).unwrap());
                // Whoever moves stays, and whoever comes is served.
                assert!(ask(&mut scraper).unwrap());
                assert!(ask(&mut Plain::connect(address).unwrap()).unwrap());
            }
            idle
        };
        let idle = tokio::task::spawn_blocking(clients).await.unwrap();
        assert!(lock(&open).len() <= 4);
        drop(idle);
        while !lock(&open).is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}
