//! Shows on stderr what is going on: a bar where somebody watches, otherwise a line for each step.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinHandle;

use crate::ledger::Ledger;

pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub fn new(steps: usize) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr_with_hz(2));
        let style = ProgressStyle::with_template("{bar:20} {pos}/{len} {elapsed} {prefix} {msg}")
            .expect("the template is valid");
        bar.set_style(style);
        Progress { bar }
    }

    pub fn step(&self, name: &str) {
        self.bar.inc(1);
        if self.bar.is_hidden() {
            let (position, steps) = (self.bar.position(), self.bar.length().unwrap_or_default());
            eprintln!("{position}/{steps} after {:.0?}: {name}", self.bar.elapsed());
        }
        self.bar.set_message("");
        self.bar.set_prefix(name.to_owned());
    }

    pub fn tell(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// Shows a ledger's counts until dropped.
    pub fn watch(&self, ledger: Arc<Ledger>) -> Option<Watch> {
        if self.bar.is_hidden() {
            return None;
        }
        let bar = self.bar.clone();
        Some(Watch(tokio::spawn(async move {
            loop {
                bar.set_message(format!("{} accepted, {} arrived", ledger.accepted(), ledger.arrived()));
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        })))
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

pub struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}
