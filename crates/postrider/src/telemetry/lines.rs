//! Log lines leave through a bounded queue and a thread of their own.
//!
//! A terminal or a pipe that nobody reads blocks its writer. Deliveries must not stand still for that, so
//! a line that finds the queue full is dropped, and the next one that gets through says how many were.

use crate::config::LogFormat;
use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone)]
pub struct Lines {
    queue: SyncSender<Sent>,
    dropped: Arc<AtomicU64>,
}

/// Writes what is still queued when it is dropped, unless that cannot be done: a log that nobody reads must not keep the
/// process from ending.
pub struct LinesGuard {
    queue: SyncSender<Sent>,
    written: Receiver<()>,
}

enum Sent {
    Line(Vec<u8>),
    End,
}

pub fn to(out: impl Write + Send + 'static, format: LogFormat) -> (Lines, LinesGuard) {
    let (queue, received) = sync_channel(QUEUE_MAX);
    let dropped = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&dropped);
    let (done, written) = sync_channel(1);
    thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || {
            write_all(&received, &counted, out, format);
            let _ = done.send(());
        })
        .expect("a process at its start can make a thread");
    (Lines { queue: queue.clone(), dropped }, LinesGuard { queue, written })
}

impl Drop for LinesGuard {
    fn drop(&mut self) {
        let until = Instant::now() + END_MAX;
        while let Err(TrySendError::Full(_)) = self.queue.try_send(Sent::End) {
            if Instant::now() >= until {
                return;
            }
            thread::sleep(END_AGAIN);
        }
        let _ = self.written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { lines: self, bytes: Vec::new() }
    }
}

/// One line in the making; it leaves when it is dropped.
pub struct Line<'a> {
    lines: &'a Lines,
    bytes: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        match self.lines.queue.try_send(Sent::Line(std::mem::take(&mut self.bytes))) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => {
                self.lines.dropped.fetch_add(1, Ordering::Relaxed);
                // Looked up each time: lines are written before metrics are counted.
                metrics::counter!("postrider_log_lines_dropped_total").increment(1);
            }
        }
    }
}

fn write_all(received: &Receiver<Sent>, dropped: &AtomicU64, mut out: impl Write, format: LogFormat) {
    while let Ok(Sent::Line(line)) = received.recv() {
        // Nobody is left to be told when the log itself cannot be written.
        let _ = out.write_all(&line);
        let missing = dropped.swap(0, Ordering::Relaxed);
        if missing > 0 {
            let _ = match format {
                LogFormat::Text => writeln!(out, "WARN log lines dropped: {missing}"),
                LogFormat::Json => {
                    writeln!(out, r#"{{"level":"WARN","message":"log lines dropped","dropped":{missing}}}"#)
                }
            };
        }
    }
    let _ = out.flush();
}

const QUEUE_MAX: usize = 8192;
/// How long the end waits for what is queued.
const END_MAX: Duration = Duration::from_secs(2);
const END_AGAIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Slow {
        gate: Arc<Mutex<()>>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _open = self.gate.lock().expect("no panic while it was held");
            self.written.lock().expect("no panic while it was held").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_terminal_stops_nobody_and_the_loss_is_told() {
        let out = Slow::default();
        let (lines, guard) = to(out.clone(), LogFormat::Text);
        let shut = out.gate.lock().expect("first");
        for _ in 0..QUEUE_MAX + 100 {
            lines.make_writer().write_all(b"line\n").expect("never fails");
        }
        drop(shut);
        drop(guard);
        let written = String::from_utf8(out.written.lock().expect("done").clone()).expect("text");
        let arrived = written.lines().filter(|line| *line == "line").count();
        assert!((QUEUE_MAX..QUEUE_MAX + 100).contains(&arrived), "{arrived}");
        assert!(written.contains("log lines dropped"));
    }

    #[test]
    fn a_terminal_that_stays_stuck_does_not_keep_the_process_from_ending() {
        let out = Slow::default();
        let (lines, guard) = to(out.clone(), LogFormat::Text);
        let _shut = out.gate.lock().expect("first");
        for _ in 0..QUEUE_MAX + 100 {
            lines.make_writer().write_all(b"line\n").expect("never fails");
        }
        // Returns, or the test hangs.
        drop(guard);
    }
}
