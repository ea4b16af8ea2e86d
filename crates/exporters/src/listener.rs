//! Listening for scrapers and probes: a few connections at a time, each closed when nothing moves on
//! it. Whoever opens connections by the thousand must not take the descriptors that measuring needs;
//! what is more than a few waits in the kernel's queue.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 64;
/// A connection on which nothing moved for so long is closed; scrapers connect again.
const IDLE: Duration = Duration::from_secs(120);

/// See the module's documentation.
#[derive(Debug)]
pub struct Few {
    tcp: TcpListener,
    free: Arc<Semaphore>,
    idle: Duration,
}

impl Few {
    /// Binds `endpoint`.
    ///
    /// # Errors
    /// As binding does.
    pub async fn bind(endpoint: &str) -> io::Result<Self> {
        Ok(Self::of(TcpListener::bind(endpoint).await?, MAX_CONNECTIONS, IDLE))
    }

    fn of(tcp: TcpListener, connections: usize, idle: Duration) -> Self {
        Self { tcp, free: Arc::new(Semaphore::new(connections)), idle }
    }
}

impl Listener for Few {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // Nobody closes the semaphore; without a permit it would be a connection that is not counted.
        let permit = self.free.clone().acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.tcp).await;
        let idle = Box::pin(sleep(self.idle));
        (Connection { stream, idle, patience: self.idle, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// One of them.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    patience: Duration,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// What came of an attempt to read or write, or the end where nothing has for too long.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        moved: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if moved.is_ready() {
            self.idle.as_mut().reset(Instant::now() + self.patience);
            return moved;
        }
        self.idle.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
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
    use std::io::{Read, Write};

    use axum::{Router, routing::get};

    use super::*;

    /// One answer, from a connection of its own.
    fn answer(address: SocketAddr) -> String {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_says_nothing_makes_way() {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let few = Few::of(tcp, 2, Duration::from_millis(50));
        let (address, free) = (few.local_addr().unwrap(), few.free.clone());
        let app = Router::new().route("/", get(async || "here"));
        tokio::spawn(async move { axum::serve(few, app).await });
        let idle: Vec<_> =
            (0..20).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        let text = tokio::task::spawn_blocking(move || answer(address)).await.unwrap();
        assert!(text.ends_with("here"), "{text}");
        drop(idle);
        while free.available_permits() < 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
