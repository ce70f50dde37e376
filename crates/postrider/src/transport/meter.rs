//! Counts what a receiver sends, below the parser.
//!
//! hyper reads interim responses for as long as they come, a hundred megabytes in three seconds, and a
//! chunk's extension or a trailer never shows up as body. What is counted here cannot be dressed up as
//! something that need not be counted; when the budget is gone the read fails, and the connection ends.
//!
//! Whoever sends a few bytes at a time is read ever more rarely. What has come meanwhile is then read at once, so an answer
//! that is merely in many pieces is not held up for long; but thousands of receivers that let an answer drip would otherwise
//! wake us with every byte.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Shared by a connection's stream and whoever uses the connection. Nothing else is published through
/// these numbers, hence the relaxed order.
#[derive(Debug, Default)]
pub(super) struct Meter {
    left: AtomicU64,
    read: AtomicU64,
    spent: AtomicBool,
    /// How often the response brought only a few bytes.
    drops: AtomicU32,
    /// Why TLS broke off. In TLS 1.3 whoever does not want our certificate says so after the handshake, perhaps before the
    /// request is on its way, and the parser makes nothing of an error at that time but a connection that is gone.
    tls_fault: OnceLock<rustls::Error>,
}

impl Meter {
    pub fn tls_fault(&self) -> Option<&rustls::Error> {
        self.tls_fault.get()
    }

    fn note_fault(&self, error: &io::Error) {
        if let Some(fault) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            let _ = self.tls_fault.set(fault.clone());
        }
    }

    /// A response begins: nothing read yet, and so much allowed.
    pub fn start(&self, budget: u64) {
        self.read.store(0, Relaxed);
        self.left.store(budget, Relaxed);
        self.drops.store(0, Relaxed);
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

    /// The response came in so many small pieces that it is read with pauses.
    pub fn is_dripping(&self) -> bool {
        self.drops.load(Relaxed) > DROPS_FREE
    }

    fn count(&self, bytes: u64) -> io::Result<()> {
        self.read.fetch_add(bytes, Relaxed);
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).map(drop).map_err(|_| {
            self.spent.store(true, Relaxed);
            io::Error::other("the receiver sent more than we read")
        })
    }
}

/// How long to leave a receiver alone that has sent a few bytes so many times.
fn pause_after(drops: u32) -> Duration {
    match drops.checked_sub(DROPS_FREE) {
        None | Some(0) => Duration::ZERO,
        Some(more) => PAUSE_MIN.saturating_mul(1 << (more - 1).min(16)).min(PAUSE_MAX),
    }
}

/// Fewer bytes are a drop.
const DROP_BYTES: usize = 256;
/// More pieces than an ordinary answer comes in.
const DROPS_FREE: u32 = 8;
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

pub(super) struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
    /// Nothing is read before its end.
    pause: Option<Pin<Box<Sleep>>>,
    paced: bool,
}

impl<S> Metered<S> {
    pub fn new(stream: S, meter: Arc<Meter>) -> Self {
        Self { stream, meter, pause: None, paced: true }
    }

    /// For a connection that carries several responses at once, where small frames are the rule.
    pub fn unpaced(stream: S, meter: Arc<Meter>) -> Self {
        Self { paced: false, ..Self::new(stream, meter) }
    }

    fn pace(&mut self, bytes: usize) {
        // At its end there is nothing to wait for.
        if self.paced && (1..DROP_BYTES).contains(&bytes) {
            let pause = pause_after(self.meter.drops.fetch_add(1, Relaxed) + 1);
            self.pause = (!pause.is_zero()).then(|| Box::pin(sleep(pause)));
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(pause) = &mut this.pause {
            // Unless another response has begun.
            if this.meter.drops.load(Relaxed) > 0 {
                ready!(pause.as_mut().poll(cx));
            }
            this.pause = None;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf)).inspect_err(|error| this.meter.note_fault(error))?;
        let bytes = buf.filled().len() - before;
        this.pace(bytes);
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
        let this = self.get_mut();
        Pin::new(&mut this.stream)
            .poll_write(cx, buf)
            .map(|done| done.inspect_err(|error| this.meter.note_fault(error)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        polled.map(|done| done.inspect_err(|error| this.meter.note_fault(error)))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        Pin::new(&mut this.stream).poll_flush(cx).map(|done| done.inspect_err(|error| this.meter.note_fault(error)))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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

    #[test]
    fn an_ordinary_answer_is_read_at_once_and_one_that_drips_ever_more_rarely() {
        assert!((0..=8).all(|drops| pause_after(drops).is_zero()));
        let pauses: Vec<u128> = (9..=17).map(|drops| pause_after(drops).as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
        assert_eq!(pause_after(u32::MAX), PAUSE_MAX);
        for (drops, is_dripping) in [(0, false), (DROPS_FREE, false), (DROPS_FREE + 1, true)] {
            let meter = Meter { drops: AtomicU32::new(drops), ..Meter::default() };
            assert_eq!((meter.is_dripping(), pause_after(drops) > Duration::ZERO), (is_dripping, is_dripping));
        }
    }

    /// How often something was read, and what.
    async fn read_by_and_by(mut stream: Metered<tokio::io::DuplexStream>) -> (usize, Vec<u8>) {
        let (mut reads, mut all, mut piece) = (0, Vec::new(), [0; 1_024]);
        loop {
            match stream.read(&mut piece).await.expect("there is budget") {
                0 => return (reads, all),
                bytes => all.extend(&piece[..bytes]),
            }
            reads += 1;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_drips_is_read_less_often_than_he_writes() {
        let meter = Arc::new(Meter::default());
        meter.start(10_000);
        let (mut theirs, ours) = tokio::io::duplex(1_024);
        let drip = async move {
            for _ in 0..100 {
                theirs.write_all(b"a").await.expect("somebody reads");
                sleep(Duration::from_millis(200)).await;
            }
        };
        let ((reads, all), ()) = tokio::join!(read_by_and_by(Metered::new(ours, meter)), drip);
        assert_eq!(all.len(), 100);
        assert!(reads < 35, "{reads}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_in_many_pieces_is_hardly_held_up() {
        let meter = Arc::new(Meter::default());
        meter.start(1_000_000);
        let (mut theirs, ours) = tokio::io::duplex(65_536);
        let began = tokio::time::Instant::now();
        let write = async move {
            for _ in 0..200 {
                theirs.write_all(&[b'a'; 100]).await.expect("somebody reads");
                tokio::task::yield_now().await;
            }
        };
        let ((_, all), ()) = tokio::join!(read_by_and_by(Metered::new(ours, meter)), write);
        assert_eq!(all.len(), 20_000);
        assert!(began.elapsed() <= Duration::from_millis(50), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_response_is_not_kept_waiting_for_the_last_one() {
        let meter = Arc::new(Meter::default());
        meter.start(1_000);
        let (mut theirs, ours) = tokio::io::duplex(1_024);
        let mut ours = Metered::new(ours, Arc::clone(&meter));
        for _ in 0..20 {
            theirs.write_all(b"a").await.expect("it fits");
            ours.read_u8().await.expect("it was written");
        }
        let began = tokio::time::Instant::now();
        meter.start(1_000);
        theirs.write_all(b"a").await.expect("it fits");
        ours.read_u8().await.expect("it was written");
        assert_eq!(began.elapsed(), Duration::ZERO);
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
