//! Counts what a receiver sends, below the parser.
//!
//! hyper reads interim responses for as long as they come, a hundred megabytes in three seconds, and a
//! chunk's extension or a trailer never shows up as body. What is counted here cannot be dressed up as
//! something that need not be counted; when the budget is gone the read fails, and the connection ends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Shared by a connection's stream and whoever uses the connection. Nothing else is published through
/// these numbers, hence the relaxed order.
#[derive(Debug, Default)]
pub(super) struct Meter {
    left: AtomicU64,
    read: AtomicU64,
    spent: AtomicBool,
}

impl Meter {
    /// A response begins: nothing read yet, and so much allowed.
    pub fn start(&self, budget: u64) {
        self.read.store(0, Relaxed);
        self.left.store(budget, Relaxed);
    }

    /// The same response goes on with a new budget.
    pub fn allow(&self, budget: u64) {
        self.left.store(budget, Relaxed);
    }

    /// One more response is expected on a connection that carries several at once.
    pub fn add(&self, budget: u64, left_max: u64) {
        let _ = self.left.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_add(budget).min(left_max)));
    }

    pub fn read(&self) -> u64 {
        self.read.load(Relaxed)
    }

    pub fn is_spent(&self) -> bool {
        self.spent.load(Relaxed)
    }

    fn count(&self, bytes: u64) -> io::Result<()> {
        self.read.fetch_add(bytes, Relaxed);
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).map(drop).map_err(|_| {
            self.spent.store(true, Relaxed);
            io::Error::other("the receiver sent more than we read")
        })
    }
}

pub(super) struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
}

impl<S> Metered<S> {
    pub fn new(stream: S, meter: Arc<Meter>) -> Self {
        Self { stream, meter }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        let bytes = buf.filled().len() - before;
        let counted = this.meter.count(bytes as u64);
        if counted.is_err() {
            // A read that fails has read nothing.
            buf.set_filled(before);
        }
        Poll::Ready(counted)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    async fn read_of(bytes: &[u8], meter: &Arc<Meter>) -> io::Result<usize> {
        let mut sink = Vec::new();
        Metered::new(bytes, meter.clone()).read_to_end(&mut sink).await
    }

    #[tokio::test]
    async fn a_read_beyond_the_budget_fails() {
        let meter = Arc::new(Meter::default());
        meter.start(10);
        assert_eq!(read_of(&[0; 10], &meter).await.unwrap(), 10);
        assert!(!meter.is_spent());
        assert!(read_of(&[0; 1], &meter).await.is_err());
        assert!(meter.is_spent());
        assert_eq!(meter.read(), 11);
    }

    #[tokio::test]
    async fn an_idle_connection_gathers_no_endless_budget() {
        let meter = Arc::new(Meter::default());
        for _ in 0..100 {
            meter.add(8, 20);
        }
        assert!(read_of(&[0; 21], &meter).await.is_err());
    }
}
