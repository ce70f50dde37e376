//! Work that has the database to itself.

use super::{State, TRIES_MAX, WRITE_LOCK, count, in_time, is_collision};
use crate::{
    StoreError,
    postgres::{
        Error,
        jobs::{Failure, Hot, Turn, TurnJob, Written},
        news,
    },
    step,
};
use futures_util::FutureExt;
use std::{panic::AssertUnwindSafe, sync::Arc};

impl State {
    pub(super) async fn take_turn(&mut self, job: Box<dyn TurnJob>) {
        self.shared.begin_commit();
        self.run_turn(job).await;
        self.shared.end_commit();
    }

    async fn run_turn(&mut self, mut job: Box<dyn TurnJob>) {
        let mut tries = 0;
        loop {
            tries += 1;
            let error = match self.attempt_turn(&mut *job).await {
                Ok(written) => {
                    step!("turn.committed");
                    self.conclude(Hot::default(), written);
                    return job.finish(Ok(()));
                }
                Err(Failure::Undone(error)) => error,
                Err(Failure::Unknown(written)) => match self.clear_up(&written).await {
                    Ok(true) => {
                        self.conclude(Hot::default(), *written);
                        return job.finish(Ok(()));
                    }
                    Ok(false) if self.is_member => Error::Unreachable("the connection was lost".to_owned()),
                    // Whoever declared it dead left nothing by which it could be told.
                    Ok(false) => {
                        let unknown = "the connection was lost, and it is not known whether this was carried out";
                        return job.finish(Err(StoreError::Unreachable(unknown.to_owned())));
                    }
                    Err(closed) => return job.finish(Err(closed)),
                },
            };
            if let Error::Deposed = error {
                self.depose();
            }
            let again = match &error {
                Error::Deposed => tries == 1,
                Error::Unreachable(_) => tries < 2,
                _ => error.is_lost() || error.code().is_some_and(is_collision),
            };
            if !again || tries >= TRIES_MAX {
                return job.finish(Err(error.into()));
            }
        }
    }

    pub(super) async fn attempt_turn(&mut self, job: &mut dyn TurnJob) -> Result<Written, Failure> {
        self.join().await?;
        let client = self.client().await?;
        let through = self.shared.settled_through(None);
        let mut turn = Turn { client: Arc::clone(&client), tenure: self.shared.tenure(), announced: Vec::new() };
        let (shared, batch) = (&self.shared, self.batch + 1);
        let write = async {
            client.batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({WRITE_LOCK})")).await?;
            count(&client, turn.tenure, batch, through, shared.minter().last()).await?;
            // Work that panics takes its own transaction with it, and nothing else.
            let run = AssertUnwindSafe(job.run(&mut turn)).catch_unwind().await;
            run.unwrap_or_else(|_| Err(Error::Panicked))?;
            let owned = shared.owned();
            let events = news::address(&client, std::mem::take(&mut turn.announced)).await?;
            news::publish(&client, turn.tenure.0, &owned, &events).await?;
            step!("turn.written");
            Ok(Written { events, through, ..Written::default() })
        };
        let written = match in_time(write).await {
            Ok(written) => written,
            Err(error) => return Err(self.roll_back(error).await),
        };
        self.commit(&client, written).await
    }
}
