//! What is broken, by kind. Each happens by itself, at times drawn from its own chance, and mends by itself.

use crate::{chance::Chance, config::Sharing, node::Ending, temper::Temper, world::World};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

macro_rules! kinds {
    ($($name:ident $text:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum FaultKind { $($name),* }

        impl FaultKind {
            pub const COUNT: usize = [$($text),*].len();
            pub const ALL: [Self; Self::COUNT] = [$(Self::$name),*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

kinds! {
    Kill "kill",
    KillDuringStart "kill-during-start",
    CrashLoop "crash-loop",
    GracefulStop "graceful-stop",
    RollingRestart "rolling-restart",
    PauseShort "pause-short",
    PauseLong "pause-longer-than-lease",
    DatabaseStall "database-stall",
    CutOne "cut-one",
    CutAll "cut-all",
    Deaf "deaf",
    AnswersLost "answers-lost",
    WritesRefused "writes-refused",
    DiskFull "disk-full",
    SlowDisk "slow-disk",
    SlowReads "slow-reads",
    NewsLost "news-lost",
    NewsLate "news-late",
    ClockForward "clock-forward",
    ClockBack "clock-back",
    ClockSkew "clock-skew",
    ClockDrift "clock-drift",
    ReceiverStorm "receiver-storm",
    AllReceiversDead "all-receivers-dead",
    HerdReturns "herd-returns",
    SlowBurst "slow-burst",
    LoadBurst "load-burst",
    SettingsChurn "settings-churn",
    DiesAfterCommit "dies-after-commit",
    OutOfHandles "out-of-handles",
}

impl FaultKind {
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Only where several nodes share a database over a network.
    pub fn needs_many(self) -> bool {
        matches!(
            self,
            Self::CutOne
                | Self::CutAll
                | Self::Deaf
                | Self::AnswersLost
                | Self::NewsLost
                | Self::NewsLate
                | Self::ClockSkew
                | Self::PauseLong
                | Self::RollingRestart
        )
    }

    /// Only where one process has the database, and goes by the machine's own clock: otherwise the database's counts, and a jump
    /// of it is another matter.
    pub fn needs_alone(self) -> bool {
        matches!(self, Self::ClockForward | Self::ClockBack)
    }

    /// On our side, and not the receivers' or the producers'.
    pub fn is_ours(self) -> bool {
        !matches!(
            self,
            Self::ReceiverStorm
                | Self::AllReceiversDead
                | Self::HerdReturns
                | Self::SlowBurst
                | Self::LoadBurst
                | Self::SettingsChurn
        )
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask(pub u64);

impl Mask {
    pub fn has(self, kind: FaultKind) -> bool {
        self.0 & 1 << kind as u64 != 0
    }

    pub fn with(self, kind: FaultKind) -> Self {
        Self(self.0 | 1 << kind as u64)
    }
}

/// Does one kind of fault, again and again, about every so many milliseconds.
pub async fn keep_breaking(world: Arc<World>, kind: FaultKind, every: i64) {
    let mut chance = Chance::new(world.config.seed, kind.name(), 1);
    loop {
        pass(chance.between(every / 2, every * 3 / 2)).await;
        if world.is_over() {
            return;
        }
        let beside = world.begin_fault();
        if beside {
            world.judge().two_at_once();
        }
        strike(&world, kind, &mut chance).await;
        world.end_fault();
    }
}

async fn strike(world: &Arc<World>, kind: FaultKind, chance: &mut Chance) {
    let node = chance.index(world.config.nodes);
    let lease = match world.config.sharing {
        Sharing::Alone => 5_000,
        Sharing::Many { lease, .. } => lease,
    };
    let said = |node: Option<usize>, length: i64| world.judge().fault(kind, node, length);
    match kind {
        FaultKind::Kill => {
            if world.end(node, Ending::Killed) {
                said(Some(node), 0);
                pass(chance.spread(1, lease * 2)).await;
                world.start(node).await;
            }
        }
        FaultKind::KillDuringStart => {
            if world.end(node, Ending::Killed) {
                said(Some(node), 0);
                pass(chance.spread(1, 2_000)).await;
                let starting = tokio::spawn({
                    let world = Arc::clone(world);
                    async move { world.start(node).await }
                });
                pass(chance.spread(1, 50)).await;
                world.end(node, Ending::Killed);
                let _ = starting.await;
                world.end(node, Ending::Killed);
                pass(chance.spread(1, 1_000)).await;
                world.start(node).await;
            }
        }
        FaultKind::CrashLoop => {
            said(Some(node), 0);
            for _ in 0..chance.between(3, 8) {
                world.end(node, Ending::Killed);
                pass(chance.spread(1, 300)).await;
                world.start(node).await;
                pass(chance.spread(10, 800)).await;
            }
        }
        FaultKind::GracefulStop => {
            if world.stop(node).await {
                said(Some(node), 0);
                pass(chance.spread(1, lease)).await;
                world.start(node).await;
            }
        }
        FaultKind::RollingRestart => {
            said(None, 0);
            for node in 0..world.config.nodes {
                world.stop(node).await;
                pass(chance.spread(1, 1_000)).await;
                world.start(node).await;
                pass(chance.spread(100, 3_000)).await;
            }
        }
        FaultKind::PauseShort => {
            let length = chance.spread(10, lease / 2);
            said(Some(node), length);
            world.weather(node, |weather| weather.stalled = true);
            pass(length).await;
            world.weather(node, |weather| weather.stalled = false);
        }
        FaultKind::PauseLong => {
            let length = lease + chance.spread(500, lease * 2);
            said(Some(node), length);
            world.weather(node, |weather| weather.stalled = true);
            pass(length).await;
            world.weather(node, |weather| weather.stalled = false);
        }
        FaultKind::DatabaseStall => {
            let length = chance.spread(500, lease / 2);
            said(None, length);
            let slow = (Duration::from_millis(length as u64), Duration::from_millis(length as u64 + 200));
            all(world, |weather| (weather.read, weather.write) = (slow, slow));
            pass(length).await;
            let usual = world.usual_weather();
            all(world, |weather| (weather.read, weather.write) = (usual.read, usual.write));
        }
        FaultKind::CutOne => {
            let length = chance.spread(200, lease * 3);
            said(Some(node), length);
            world.weather(node, |weather| weather.cut = true);
            pass(length).await;
            world.weather(node, |weather| weather.cut = false);
        }
        FaultKind::CutAll => {
            let length = chance.spread(200, lease * 2);
            said(None, length);
            all(world, |weather| weather.cut = true);
            pass(length).await;
            all(world, |weather| weather.cut = false);
        }
        FaultKind::Deaf => {
            let length = chance.spread(200, lease * 2);
            said(Some(node), length);
            world.weather(node, |weather| weather.deaf = true);
            pass(length).await;
            world.weather(node, |weather| weather.deaf = false);
        }
        FaultKind::AnswersLost => {
            let (length, share) = (chance.spread(1_000, 30_000), chance.spread(50, 5_000) as u32);
            said(Some(node), length);
            world.weather(node, |weather| weather.answer_lost = share);
            pass(length).await;
            world.weather(node, |weather| weather.answer_lost = 0);
        }
        FaultKind::WritesRefused => {
            let (length, share) = (chance.spread(1_000, 30_000), chance.spread(50, 8_000) as u32);
            said(Some(node), length);
            world.weather(node, |weather| weather.fails = share);
            pass(length).await;
            world.weather(node, |weather| weather.fails = 0);
        }
        FaultKind::DiskFull => {
            let length = chance.spread(200, 30_000);
            said(None, length);
            all(world, |weather| weather.full = true);
            pass(length).await;
            all(world, |weather| weather.full = false);
        }
        FaultKind::SlowDisk => {
            let (length, most) = (chance.spread(1_000, 30_000), chance.spread(50, 1_500) as u64);
            said(Some(node), length);
            world.weather(node, |weather| {
                weather.write = (Duration::from_millis(most / 2), Duration::from_millis(most));
            });
            pass(length).await;
            let usual = world.usual_weather();
            world.weather(node, |weather| weather.write = usual.write);
        }
        FaultKind::SlowReads => {
            let (length, most) = (chance.spread(1_000, 30_000), chance.spread(50, 3_000) as u64);
            said(Some(node), length);
            world.weather(node, |weather| weather.read = (Duration::ZERO, Duration::from_millis(most)));
            pass(length).await;
            let usual = world.usual_weather();
            world.weather(node, |weather| weather.read = usual.read);
        }
        FaultKind::NewsLost => {
            let (length, share) = (chance.spread(1_000, 60_000), chance.spread(500, 10_000) as u32);
            said(Some(node), length);
            world.weather(node, |weather| weather.news_lost = share);
            pass(length).await;
            world.weather(node, |weather| weather.news_lost = 0);
        }
        FaultKind::NewsLate => {
            let (length, late) = (chance.spread(1_000, 60_000), chance.spread(10, 2_000) as u64);
            said(Some(node), length);
            world.weather(node, |weather| weather.news_delay = Duration::from_millis(late));
            pass(length).await;
            world.weather(node, |weather| weather.news_delay = Duration::ZERO);
        }
        FaultKind::ClockForward => {
            let by = chance.spread(1_000, 7_200_000);
            said(Some(node), by);
            world.set_clock(node, by);
        }
        FaultKind::ClockBack => {
            let by = chance.spread(1_000, 600_000);
            said(Some(node), -by);
            world.set_clock(node, -by);
        }
        FaultKind::ClockSkew => {
            let by = chance.between(-2_000, 2_000) - world.clock_offset(node);
            said(Some(node), by);
            world.set_clock(node, by);
        }
        FaultKind::ClockDrift => {
            let by = chance.between(-40, 40);
            said(Some(node), by);
            world.set_clock(node, by);
        }
        FaultKind::ReceiverStorm => {
            let length = chance.spread(1_000, 60_000);
            said(None, length);
            let temper = chance.pick(&[Temper::Failing, Temper::RateLimiting, Temper::Moody, Temper::Cutting]);
            world.receivers().all_are(Some(temper));
            pass(length).await;
            world.receivers().all_are(None);
        }
        FaultKind::AllReceiversDead => {
            let length = chance.spread(1_000, 120_000);
            said(None, length);
            world.receivers().all_are(Some(Temper::Dead));
            pass(length).await;
            world.receivers().all_are(None);
        }
        FaultKind::HerdReturns => {
            let length = chance.spread(5_000, 180_000);
            said(None, length);
            let receiver = chance.index(world.config.endpoints.len());
            world.receivers().one_is(receiver, Some(Temper::Dead));
            pass(length).await;
            world.receivers().one_is(receiver, Some(Temper::Healthy));
            pass(length).await;
            world.receivers().one_is(receiver, None);
        }
        FaultKind::SlowBurst => {
            let length = chance.spread(1_000, 60_000);
            said(None, length);
            world.receivers().all_are(Some(Temper::Slow));
            pass(length).await;
            world.receivers().all_are(None);
        }
        FaultKind::LoadBurst => {
            let count = chance.spread(10, (world.config.deliveries as i64 / 20).max(10));
            said(None, count);
            world.add_load(count as u64);
        }
        FaultKind::SettingsChurn => {
            said(None, 0);
            for _ in 0..chance.between(1, 6) {
                crate::people::change_settings(world, chance).await;
                pass(chance.spread(1, 500)).await;
            }
        }
        FaultKind::DiesAfterCommit => {
            if world.die_after_commit(node, chance.spread(1, 30) as u32).await {
                said(Some(node), 0);
                pass(chance.spread(1, lease)).await;
                world.start(node).await;
            }
        }
        FaultKind::OutOfHandles => {
            let length = chance.spread(500, 20_000);
            said(Some(node), length);
            world.receivers().short_of_handles(node, true);
            pass(length).await;
            world.receivers().short_of_handles(node, false);
        }
    }
}

fn all(world: &Arc<World>, mut change: impl FnMut(&mut crate::store::Weather)) {
    for node in 0..world.config.nodes {
        world.weather(node, &mut change);
    }
}

pub async fn pass(millis: i64) {
    sleep(Duration::from_millis(millis.max(0).cast_unsigned())).await;
}
