//! Tasks that do one errand after the other, so that not each of them needs a task of its own.
//!
//! Every errand begins at once: by a task that rests, the one that has rested least, or by a new one.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

/// So many may rest; they keep some kilobytes each. As many as ten busy endpoints take.
const RESTING_MAX: usize = 128;

/// Those that rest end when this is dropped, and the others when they come to rest.
pub struct Hands<E> {
    resting: Arc<Mutex<Resting<E>>>,
}

struct Resting<E> {
    hands: Vec<Arc<Slot<E>>>,
    is_over: bool,
}

/// One task's end of it.
pub struct Hand<E> {
    slot: Arc<Slot<E>>,
    resting: Arc<Mutex<Resting<E>>>,
}

struct Slot<E>(Mutex<Next<E>>);

enum Next<E> {
    Errand(E),
    Unknown(Option<Waker>),
    Nothing,
}

impl<E> Default for Hands<E> {
    fn default() -> Self {
        Self { resting: Arc::new(Mutex::new(Resting { hands: Vec::new(), is_over: false })) }
    }
}

impl<E: Send + 'static> Hands<E> {
    /// `work` is for a new task: what it does with each errand that it takes.
    pub fn give<F>(&self, errand: E, work: impl FnOnce(Hand<E>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let rested = lock(&self.resting).hands.pop();
        match rested {
            Some(slot) => slot.set(Next::Errand(errand)),
            None => {
                let slot = Arc::new(Slot(Mutex::new(Next::Errand(errand))));
                tokio::spawn(work(Hand { slot, resting: Arc::clone(&self.resting) }));
            }
        }
    }
}

impl<E> Drop for Hands<E> {
    fn drop(&mut self) {
        let mut resting = lock(&self.resting);
        resting.is_over = true;
        let hands = std::mem::take(&mut resting.hands);
        drop(resting);
        for slot in hands {
            slot.set(Next::Nothing);
        }
    }
}

impl<E> Hand<E> {
    /// `None`: it is not needed any more.
    pub async fn errand(&mut self) -> Option<E> {
        poll_fn(|cx| {
            let mut next = lock(&self.slot.0);
            match std::mem::replace(&mut *next, Next::Unknown(None)) {
                Next::Errand(errand) => Poll::Ready(Some(errand)),
                Next::Nothing => Poll::Ready(None),
                Next::Unknown(waker) => {
                    let waker = waker.filter(|waker| waker.will_wake(cx.waker()));
                    *next = Next::Unknown(Some(waker.unwrap_or_else(|| cx.waker().clone())));
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The errand is done. To be called before anybody is told so: he may have the next one.
    pub fn rest(&mut self) {
        let mut resting = lock(&self.resting);
        if resting.is_over || resting.hands.len() >= RESTING_MAX {
            drop(resting);
            self.slot.set(Next::Nothing);
        } else {
            resting.hands.push(Arc::clone(&self.slot));
        }
    }
}

impl<E> Slot<E> {
    fn set(&self, next: Next<E>) {
        let before = std::mem::replace(&mut *lock(&self.0), next);
        if let Next::Unknown(Some(waker)) = before {
            waker.wake();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use tokio::{
        sync::{mpsc, oneshot},
        task::yield_now,
    };

    /// Errands that wait until they may end.
    struct Scene {
        hands: Hands<oneshot::Receiver<()>>,
        /// Tasks that were ever begun.
        begun: Arc<AtomicUsize>,
        /// One for each task that there is.
        alive: Arc<()>,
        done: (mpsc::UnboundedSender<()>, mpsc::UnboundedReceiver<()>),
    }

    impl Scene {
        fn set() -> Self {
            let (hands, begun, alive) = (Hands::default(), Arc::default(), Arc::default());
            Self { hands, begun, alive, done: mpsc::unbounded_channel() }
        }

        fn give(&self) -> oneshot::Sender<()> {
            let (end, errand) = oneshot::channel();
            let (begun, alive, done) = (Arc::clone(&self.begun), Arc::clone(&self.alive), self.done.0.clone());
            self.hands.give(errand, async move |mut hand| {
                begun.fetch_add(1, SeqCst);
                let _alive = alive;
                while let Some(errand) = hand.errand().await {
                    errand.await.expect("it is told to end");
                    hand.rest();
                    let _ = done.send(());
                }
            });
            end
        }

        async fn end(&mut self, errands: Vec<oneshot::Sender<()>>) {
            let count = errands.len();
            errands.into_iter().for_each(|end| end.send(()).expect("somebody does it"));
            for _ in 0..count {
                self.done.1.recv().await.expect("it is done");
            }
        }

        async fn until_alive(&self, count: usize) {
            while Arc::strong_count(&self.alive) - 1 != count {
                yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn one_task_does_what_comes_one_after_the_other() {
        let mut scene = Scene::set();
        for _ in 0..10 {
            let errand = scene.give();
            scene.end(vec![errand]).await;
        }
        assert_eq!(scene.begun.load(SeqCst), 1);
    }

    #[tokio::test]
    async fn what_comes_at_once_begins_at_once_and_only_so_many_rest() {
        let mut scene = Scene::set();
        let errands = (0..RESTING_MAX + 70).map(|_| scene.give()).collect();
        scene.end(errands).await;
        assert_eq!(scene.begun.load(SeqCst), RESTING_MAX + 70);
        scene.until_alive(RESTING_MAX).await;
        let errands = (0..RESTING_MAX).map(|_| scene.give()).collect();
        scene.end(errands).await;
        assert_eq!(scene.begun.load(SeqCst), RESTING_MAX + 70);
    }

    #[tokio::test]
    async fn when_nothing_more_will_come_they_end_those_at_work_when_it_is_done() {
        let mut scene = Scene::set();
        let mut errands: Vec<_> = (0..3).map(|_| scene.give()).collect();
        let last = errands.pop().expect("there are three");
        scene.end(errands).await;
        scene.until_alive(3).await;
        drop(std::mem::take(&mut scene.hands));
        scene.until_alive(1).await;
        scene.end(vec![last]).await;
        scene.until_alive(0).await;
    }

    #[tokio::test]
    async fn one_that_dies_at_work_is_not_counted_on() {
        let mut scene = Scene::set();
        drop(scene.give());
        scene.until_alive(0).await;
        let errand = scene.give();
        scene.end(vec![errand]).await;
        assert_eq!(scene.begun.load(SeqCst), 2);
    }
}
