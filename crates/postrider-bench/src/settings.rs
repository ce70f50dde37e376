//! What is measured, how often, and how much of everything.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::relay::Keeps;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// A bare client that signs and posts to the receiver: what delivering costs without a server
    Floor,
    /// What a server could do that takes messages and delivers them with this HTTP library and does nothing else
    Ceiling,
    /// 64 producers -> server -> receiver, ten applications with an endpoint each
    EndToEnd,
    /// The same with one application of ten endpoints
    FanOut,
    /// A fixed rate: how long a message takes when the server is not pressed
    Steady,
    /// The same at a rate that it can just keep up with on a small machine
    #[value(name = "steady-5000")]
    #[serde(rename = "steady-5000")]
    SteadyHigh,
    /// End to end with many messages in each request
    Batches,
    /// End to end with HTTP/2 in the clear on the way in
    Http2,
    /// One application of a thousand endpoints
    FanOutThousand,
    /// End to end with payloads of a megabyte, and the floor with the same
    LargePayloads,
    /// 10,000 endpoints of which a hundredth is busy at a time, against that hundredth alone
    ManyEndpoints,
    /// Start on an empty folder: time until ready, memory, and what it does when nothing happens
    Idle,
    /// End to end with finished deliveries in the store, against an empty one
    GrowthFinished,
    /// End to end with waiting retries in the store, against an empty one
    GrowthWaiting,
    /// End to end with 100,000 endpoints in the store, against an empty one
    GrowthEndpoints,
    /// A store that is filled step by step with finished deliveries: cost, lists, size and start at each step
    CurveFinished,
    /// The same with waiting retries
    CurveWaiting,
    /// End to end while old history is being forgotten, against an empty store
    Forgetting,
    /// A fixed rate to ten endpoints, then three of them hang
    Isolation,
    /// 100 endpoints, 90 of which hang, against the other ten alone
    IsolationHundred,
    /// 1,000 endpoints, 900 of them dead, hanging or dripping, against the other 100 alone
    IsolationThousand,
    /// Pausing, resuming and tripping a lane with a great many deliveries in it
    Parking,
    /// The dashboard's pages with a great many messages in the store, and delivering while people look at them
    Looking,
    /// Other services' requests to a source, verified, deduplicated and stored, against a bare server
    Gateway,
    /// End to end on PostgreSQL with one node
    PgEndToEnd,
    /// The same with three nodes
    PgThreeNodes,
    /// End to end on PostgreSQL with finished deliveries in the store, against an empty one
    PgFinished,
    /// End to end on PostgreSQL with waiting retries in the store, against an empty one
    PgWaiting,
    /// End to end on PostgreSQL with 100,000 endpoints in the store, against an empty one
    PgEndpoints,
    /// PostgreSQL filled step by step with finished deliveries, and how a node takes over at each step
    PgCurveFinished,
    /// The same with waiting retries
    PgCurveWaiting,
    /// End to end on PostgreSQL while old history is being forgotten, against an empty store
    PgForgetting,
    /// Three nodes at a fixed rate, and one of them ends
    PgTakeOver,
    /// What one and three nodes cost when nothing happens
    PgIdle,
    /// The dashboard on PostgreSQL
    PgLooking,
    /// A source on PostgreSQL
    PgGateway,
}

impl Scenario {
    pub fn is_on_postgres(self) -> bool {
        match self {
            Scenario::Floor
            | Scenario::Ceiling
            | Scenario::EndToEnd
            | Scenario::FanOut
            | Scenario::Steady
            | Scenario::SteadyHigh
            | Scenario::Batches
            | Scenario::Http2
            | Scenario::FanOutThousand
            | Scenario::LargePayloads
            | Scenario::ManyEndpoints
            | Scenario::Idle
            | Scenario::GrowthFinished
            | Scenario::GrowthWaiting
            | Scenario::GrowthEndpoints
            | Scenario::CurveFinished
            | Scenario::CurveWaiting
            | Scenario::Forgetting
            | Scenario::Isolation
            | Scenario::IsolationHundred
            | Scenario::IsolationThousand
            | Scenario::Parking
            | Scenario::Looking
            | Scenario::Gateway => false,
            Scenario::PgEndToEnd
            | Scenario::PgThreeNodes
            | Scenario::PgFinished
            | Scenario::PgWaiting
            | Scenario::PgEndpoints
            | Scenario::PgCurveFinished
            | Scenario::PgCurveWaiting
            | Scenario::PgForgetting
            | Scenario::PgTakeOver
            | Scenario::PgIdle
            | Scenario::PgLooking
            | Scenario::PgGateway => true,
        }
    }

    /// It takes many minutes, most of them to fill a store.
    pub fn is_long(self) -> bool {
        matches!(
            self,
            Scenario::CurveFinished
                | Scenario::CurveWaiting
                | Scenario::Forgetting
                | Scenario::PgCurveFinished
                | Scenario::PgCurveWaiting
                | Scenario::PgForgetting
        )
    }

    /// It asks of a server nothing but what the contract has, and nothing of its processes.
    pub fn is_for_any_server(self) -> bool {
        matches!(
            self,
            Scenario::Floor | Scenario::EndToEnd | Scenario::FanOut | Scenario::Steady | Scenario::SteadyHigh
        )
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Settings {
    pub runs: usize,
    pub seconds: f64,
    pub scenarios: BTreeSet<Scenario>,
    pub hang_seconds: f64,
    pub patience_seconds: u64,
    #[serde(flatten)]
    pub sizes: Sizes,
}

/// How much of everything. The defaults are what the targets are about.
#[derive(Debug, Clone, Serialize, clap::Args)]
pub struct Sizes {
    /// Messages per second where the rate is fixed
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rate: u32,
    /// Messages per second of `steady-5000`
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate_high: u32,
    /// Messages in a request of `batches`
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// Endpoints of `fan-out-thousand`
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub fan_out_wide: u32,
    /// Payload of `large-payloads`
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1_025..=16 << 20))]
    pub large_bytes: u32,
    /// Endpoints of `many-endpoints`
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub many_endpoints: u32,
    /// Finished deliveries to fill the store with
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=30_000_000))]
    pub growth_finished: u32,
    /// Waiting retries to fill the store with
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=30_000_000))]
    pub growth_waiting: u32,
    /// Endpoints to fill the store with, ten in each application, on either store
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub growth_endpoints: u32,
    /// What `growth-finished` and `growth-waiting` are on SQLite, on PostgreSQL
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=30_000_000))]
    pub pg_finished: u32,
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=30_000_000))]
    pub pg_waiting: u32,
    /// Steps of the curves with finished deliveries, on either store
    #[arg(long, value_delimiter = ',', default_values_t = [0, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000])]
    pub curve_finished: Vec<u32>,
    /// Steps of the curves with waiting retries, on either store
    #[arg(long, value_delimiter = ',', default_values_t = [0, 100_000, 300_000, 1_000_000])]
    pub curve_waiting: Vec<u32>,
    /// Messages of each measurement at a step
    #[arg(long, default_value_t = 25_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub curve_messages: u32,
    /// Finished deliveries to be forgotten, on either store
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u32).range(1..=30_000_000))]
    pub forgetting: u32,
    /// Deliveries to fill a paused lane with
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=30_000_000))]
    pub parking: u32,
    /// Messages in the store while the dashboard is looked at
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(100..=30_000_000))]
    pub looking: u32,
}

impl Settings {
    /// How many steps the progress display will see.
    pub fn steps(&self) -> usize {
        let curve = |steps: &[u32]| steps.len() * (2 + 2 * self.runs);
        let of = |scenario: &Scenario| match scenario {
            Scenario::Floor
            | Scenario::EndToEnd
            | Scenario::FanOut
            | Scenario::Steady
            | Scenario::SteadyHigh
            | Scenario::Batches
            | Scenario::Http2
            | Scenario::FanOutThousand
            | Scenario::Idle
            | Scenario::PgEndToEnd
            | Scenario::PgThreeNodes => self.runs,
            Scenario::Ceiling => 2 * Keeps::ALL.len() * self.runs,
            Scenario::LargePayloads | Scenario::ManyEndpoints | Scenario::PgIdle => 2 * self.runs,
            Scenario::GrowthFinished
            | Scenario::GrowthWaiting
            | Scenario::GrowthEndpoints
            | Scenario::PgFinished
            | Scenario::PgWaiting
            | Scenario::PgEndpoints
            | Scenario::PgTakeOver => 2 + 2 * self.runs,
            Scenario::CurveFinished => curve(&self.sizes.curve_finished),
            Scenario::CurveWaiting => curve(&self.sizes.curve_waiting),
            Scenario::PgCurveFinished => curve(&self.sizes.curve_finished) + self.sizes.curve_finished.len(),
            Scenario::PgCurveWaiting => curve(&self.sizes.curve_waiting) + self.sizes.curve_waiting.len(),
            Scenario::Forgetting | Scenario::PgForgetting => 2 + 2 * self.runs,
            Scenario::Isolation => 2 * self.runs,
            Scenario::IsolationHundred | Scenario::IsolationThousand => 4 * self.runs,
            Scenario::Gateway | Scenario::PgGateway => 3 * self.runs,
            Scenario::Looking | Scenario::PgLooking => 2 + 4 * self.runs,
            Scenario::Parking => 2,
        };
        self.scenarios.iter().map(of).sum()
    }

    pub fn is_on_sqlite(&self) -> bool {
        self.scenarios.iter().any(|scenario| !scenario.is_on_postgres())
    }

    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}
