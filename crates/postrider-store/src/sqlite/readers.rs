//! Readers, apart from the writer: a long list does not hold up a commit.

use super::{OpenError, pieces::Pieces, writer::Shared, writer::translate};
use crate::StoreError;
use rusqlite::Connection;
use std::sync::{
    Arc, Mutex, PoisonError,
    mpsc::{self, Receiver, Sender},
};
use tokio::sync::oneshot;

type Look = Box<dyn FnOnce(&Connection, &Shared) + Send>;

pub struct Readers {
    looks: Mutex<Option<Sender<Look>>>,
}

impl Readers {
    pub fn start(connections: Vec<Connection>, shared: &Arc<Shared>) -> Result<Self, OpenError> {
        let (looks, queue) = mpsc::channel::<Look>();
        let queue = Arc::new(Mutex::new(queue));
        for connection in connections {
            let (queue, shared) = (Arc::clone(&queue), Arc::clone(shared));
            std::thread::Builder::new()
                .name("postrider-reader".into())
                .spawn(move || {
                    while let Some(look) = next(&queue) {
                        look(&connection, &shared);
                    }
                })
                .map_err(OpenError::Thread)?;
        }
        Ok(Self { looks: Mutex::new(Some(looks)) })
    }

    /// Runs `look` on a connection of its own. Each statement sees everything that was committed before it.
    pub async fn run<T, F>(&self, look: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, &Pieces) -> rusqlite::Result<T> + Send + 'static,
    {
        self.run_beside(move |connection, shared| look(connection, &shared.pieces())).await
    }

    /// The same for a look that also needs what the writer has in memory. It takes that when its turn has come, so that nothing
    /// great waits in the queue; and the pieces after it, so that none is missing that memory speaks of.
    pub async fn run_beside<T, F>(&self, look: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, &Shared) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let look: Look = Box::new(move |connection, shared| {
            // Who has gone meanwhile wants no answer.
            if !reply.is_closed() {
                let _ = reply.send(look(connection, shared));
            }
        });
        {
            let looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
            looks.as_ref().ok_or(StoreError::Closed)?.send(look).map_err(|_| StoreError::Closed)?;
        }
        match answer.await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => {
                tracing::error!(%error, "could not read from the store");
                Err(translate(&error))
            }
            Err(_) => Err(StoreError::Closed),
        }
    }

    pub fn close(&self) {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn next(queue: &Mutex<Receiver<Look>>) -> Option<Look> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}
