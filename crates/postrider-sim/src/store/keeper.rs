//! Keeps the lease, the share and the news of one node, beside everything else.

use super::{
    cluster::Told,
    database::Sharing,
    jobs::Job,
    leases::{self, Plan, View},
    log::What,
    memory::Life,
    node::Node,
};
use postrider_engine::EndpointKey;
use postrider_store::{Committed, Letter, Shards, StoreError, Tenure};
use std::{sync::Arc, time::Duration};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

/// How far apart looks for news are, at least: many that come close together are read together.
const NEWS_APART: Duration = Duration::from_millis(2);

/// What is read at once.
const READ_MAX: usize = 1_000;

pub async fn keep(node: Arc<Node>) {
    let Sharing::Many { lease, beat } = node.base.sharing else { return };
    let tenure = node.memory().standing.tenure;
    let mut keeper = Keeper {
        tenure,
        node,
        lease,
        leaving: Shards::NONE,
        in_touch_since: Instant::now(),
        acting: None,
        passed_on: Vec::new(),
        read_at: None,
    };
    let mut beat_at = Instant::now() + beat;
    loop {
        let bells = keeper.node.ears.bells();
        let next = [Some(beat_at), bells.news, bells.change].into_iter().flatten().min().unwrap_or(beat_at);
        tokio::select! {
            biased;
            () = sleep_until(next) => {}
            () = keeper.node.ears.wake.notified() => continue,
        }
        keeper.node.calm().await;
        match keeper.node.life() {
            Life::Running => {}
            Life::Closing | Life::Closed | Life::Killed => return,
        }
        let now = Instant::now();
        let bells = keeper.node.ears.bells();
        let looks = beat_at <= now || bells.change.is_some_and(|at| at <= now);
        keeper.node.ears.silence(|bells| {
            if looks {
                bells.change = bells.change.filter(|at| now < *at);
            }
            bells.news = bells.news.filter(|at| now < *at);
        });
        let looking = async {
            if looks {
                beat_at = now + beat;
                keeper.look().await
            } else {
                keeper.hear_news().await
            }
        };
        let patience = lease.min(Duration::from_secs(3));
        if timeout(patience, looking).await.is_ok_and(|looked| looked.is_ok()) {
            continue;
        }
        keeper.in_touch_since = Instant::now();
        beat_at = Instant::now() + beat / 5;
    }
}

struct Keeper {
    node: Arc<Node>,
    tenure: Tenure,
    lease: Duration,
    /// What the dispatcher has been asked to give back.
    leaving: Shards,
    /// Since when the database has answered.
    in_touch_since: Instant,
    /// Taking over and taking shards, beside the heartbeat: they wait for their turn, and the lease must not.
    acting: Option<JoinHandle<()>>,
    /// News that were passed on and are to be taken away.
    passed_on: Vec<u64>,
    read_at: Option<Instant>,
}

impl Keeper {
    /// Renews the lease and looks around.
    async fn look(&mut self) -> Result<(), StoreError> {
        let tenure = self.node.memory().standing.tenure;
        if tenure != self.tenure {
            self.tenure = tenure;
            self.leaving = Shards::NONE;
            self.passed_on.clear();
        }
        // By what was seen before it was done, it would be done again.
        let is_free = self.acting.as_ref().is_none_or(JoinHandle::is_finished);
        let asked_at = Instant::now();
        let (there, back) = self.node.base.sky(self.node.number, |sky| sky.read());
        self.node.pass(there).await;
        self.node.reach().await?;
        let view = self.renew(self.is_sure());
        self.node.pass(back).await;
        self.node.hear().await?;
        let Some(view) = view else {
            self.queue(Job::Doubt);
            return Ok(());
        };
        let sure_until = asked_at + (self.lease - self.lease / 10);
        let was_away = !self.node.memory().may_send(tenure);
        if !was_away {
            self.renewed(tenure, sure_until);
        }
        self.hear_news().await?;
        if was_away {
            self.node.told_of_commits().await;
            self.renewed(tenure, sure_until);
        }
        if is_free {
            self.act(&view, tenure);
        }
        Ok(())
    }

    fn renewed(&self, tenure: Tenure, until: Instant) {
        let standing = &mut self.node.memory().standing;
        if standing.tenure == tenure {
            standing.lease_until = Some(until);
        }
    }

    /// `None`: the node was declared dead.
    fn renew(&self, sure: bool) -> Option<View> {
        let now = self.node.base.clock.now();
        let mut state = self.node.base.state();
        // A lease that is being given up is not renewed.
        let is_running = self.node.life() == Life::Running;
        if !is_running || !state.cluster.nodes.contains_key(&self.tenure) {
            return None;
        }
        let view = View::of(&state.cluster, self.tenure, sure, now);
        state.cluster.leases.insert(self.tenure, now.plus(self.lease));
        state.note(self.node.number, What::Renewed { tenure: self.tenure });
        Some(view)
    }

    /// Whether a lease that is over means a death: whoever judges must have been in touch himself for as long as a lease
    /// lasts.
    fn is_sure(&self) -> bool {
        self.in_touch_since.elapsed() >= self.lease
    }

    fn queue(&self, job: Job) {
        let mut memory = self.node.memory();
        if memory.life == Life::Running {
            memory.queue.push_back(job);
        }
        drop(memory);
        self.node.jobs.notify_one();
    }

    async fn hear_news(&mut self) -> Result<(), StoreError> {
        if let Some(early) = self.read_at.and_then(|at| NEWS_APART.checked_sub(at.elapsed())) {
            self.node.pass(early).await;
        }
        loop {
            self.read_at = Some(Instant::now());
            let cancels = self.node.memory().standing.cancels;
            let (there, back) = self.node.base.sky(self.node.number, |sky| sky.read());
            self.node.pass(there).await;
            self.node.reach().await?;
            let read = self.read();
            self.node.pass(back).await;
            self.node.hear().await?;
            self.passed_on.clear();
            let Some(taken) = self.take_in(cancels, read.messages) else {
                if self.node.memory().standing.tenure != self.tenure {
                    return Ok(());
                }
                continue;
            };
            let is_stuck = taken.is_empty() && read.ids.is_empty();
            // What ends a delivery comes after its message.
            self.node.tell_in_order(taken);
            self.node.tell_in_order(read.news);
            self.passed_on = read.ids;
            if !read.more || is_stuck {
                return Ok(());
            }
        }
    }

    /// What is written down for this node, oldest first.
    fn read(&self) -> Read {
        let mut state = self.node.base.state();
        let memory = self.node.memory();
        let mut read = Read::default();
        let state = &mut *state;
        let Some(news) = state.cluster.news.get_mut(&self.tenure) else { return read };
        for id in &self.passed_on {
            news.remove(id);
        }
        let (owned, has_room) = (memory.standing.owned, memory.outstanding.has_room());
        let is_wanted = |id: &u64, news: &super::cluster::News| {
            news.shard.is_none_or(|shard| owned.contains(shard))
                && !memory.standing.heard.contains(id)
                && (has_room || !matches!(news.what, Told::Message(_)))
        };
        let found = news.iter().filter(|(id, news)| is_wanted(id, news)).take(READ_MAX);
        let mut count = 0;
        for (id, news) in found {
            count += 1;
            match &news.what {
                Told::Other(what) => {
                    read.news.push(what.clone());
                    read.ids.push(*id);
                }
                Told::Message(message) => {
                    let row = state.tables.messages.get(message);
                    let owed: Vec<EndpointKey> = row
                        .into_iter()
                        .flat_map(|row| row.owed.iter().map(move |one| (row, one)))
                        .filter(|(row, one)| state.tables.has_no_row(row, **one))
                        .map(|(_, one)| *one)
                        .collect();
                    match row {
                        Some(row) if !owed.is_empty() => {
                            read.messages.push(PassedOn { id: *id, letter: Arc::clone(&row.letter), owed });
                        }
                        // Somebody has seen to it.
                        Some(_) | None => read.ids.push(*id),
                    }
                }
            }
        }
        read.more = count == READ_MAX;
        read
    }

    /// Hands over messages that other nodes passed on. If deliveries were called off since they were read, they may be
    /// among these, and none is taken.
    fn take_in(&self, cancels: u64, messages: Vec<PassedOn>) -> Option<Vec<Committed>> {
        let mut memory = self.node.memory();
        if memory.standing.cancels != cancels || memory.standing.tenure != self.tenure {
            return None;
        }
        let mut taken = Vec::with_capacity(messages.len());
        for PassedOn { id, letter, owed } in messages {
            // A shard that is being given up is given up with what was passed on for it.
            if memory.standing.owned.has_lanes_of(letter.app) {
                memory.standing.heard.insert(id);
                let bytes = letter.payload.as_ref().map_or(0, bytes::Bytes::len);
                memory.outstanding.take_in(letter.message, owed.clone(), bytes);
                taken.push(Committed::Message { letter, owed });
            }
        }
        Some(taken)
    }

    fn act(&mut self, view: &View, tenure: Tenure) {
        let Plan { bury, claim, leave } = view.plan(tenure, self.leaving);
        if !leave.is_empty() {
            self.leaving = self.leaving.with(leave);
            self.queue(Job::Leave(leave));
        }
        self.leaving = self.leaving.and(view.mine);
        if bury.is_empty() && claim == 0 {
            return;
        }
        let (node, sure) = (Arc::clone(&self.node), self.is_sure());
        self.acting = Some(tokio::spawn(async move {
            for dead in bury {
                take_over(&node, tenure, dead, sure).await;
            }
            if claim > 0 {
                // If it fails, the next look tries again.
                let _ = node
                    .turn(move |batch| {
                        if batch.tenure() == tenure {
                            leases::claim(batch, tenure, claim);
                        }
                    })
                    .await;
            }
        }));
    }
}

async fn take_over(node: &Node, me: Tenure, dead: Tenure, sure: bool) {
    let buried = node
        .turn(move |batch| {
            // It may have come back meanwhile.
            if !batch.cluster.nodes.contains_key(&dead) || !leases::is_over(batch.cluster, dead, sure, batch.now) {
                return false;
            }
            let deliveries = leases::bury(batch, dead, batch.now);
            batch.log.push(What::Buried { tenure: dead, by: me, deliveries });
            true
        })
        .await;
    if let Ok(true) = buried {
        node.ears.ring(|bells| &mut bells.change, Instant::now());
    }
}

#[derive(Default)]
struct Read {
    news: Vec<Committed>,
    messages: Vec<PassedOn>,
    /// To take away once the news are passed on. Those of messages are kept until these are the node's own.
    ids: Vec<u64>,
    more: bool,
}

struct PassedOn {
    id: u64,
    letter: Arc<Letter>,
    /// Whose deliveries have no rows.
    owed: Vec<EndpointKey>,
}
