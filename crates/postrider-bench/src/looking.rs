//! How quickly the dashboard's pages come with a great many messages in the store, and what looking at them takes away from
//! delivering.
//!
//! One application holds most of it, which is the worst case for lists and searches; what waits and what is dead is much, too,
//! because pages count it. Lookers go by the clock, as people do: a page that is slow must not make them ask for less.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, COOKIE, HOST, HeaderValue, SET_COOKIE};
use http::{Request, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::client::Connection;
use crate::cluster::PATIENT;
use crate::field::{Field, Load, Shape};
use crate::generator::Until;
use crate::receiver::Temper;
use crate::report::Sides;
use crate::scenarios::{Bench, FILLING_CONNECTIONS};
use crate::server::{Server, Stop, Store};

#[derive(Serialize)]
pub struct Looking {
    pub messages: u64,
    /// Of them.
    pub waiting: u64,
    pub dead: u64,
    pub pages: Vec<PageTimes>,
    pub lookers: usize,
    /// Without anybody who looks, and beside them.
    pub full: Sides,
    pub steady: Sides,
    /// That lookers opened while it was measured.
    pub opened: u64,
}

/// Milliseconds.
#[derive(Serialize)]
pub struct PageTimes {
    pub page: &'static str,
    /// While nothing else happens.
    pub at_rest_median: f64,
    pub at_rest_max: f64,
    /// At full load.
    pub under_load_median: f64,
    pub under_load_max: f64,
}

impl Looking {
    pub async fn measure(bench: &mut Bench, store: Store) -> Result<Looking> {
        let count = bench.settings.sizes.looking;
        let (server, _) = bench.launcher.start(store).await?;
        let (waiting, dead) = (count / 10, count / 10);
        bench.progress.step(&format!("filling the store with {count} messages, a fifth of which fail"));
        let big = Field::single(&server, &bench.receiver, Temper::Healthy, WIDE).await?;
        let filling = |count| Load::Closed { connections: FILLING_CONNECTIONS, until: Until::Messages(count) };
        bench.measure(&server, &big, filling(count - waiting - dead)).await.context("filling the store")?;
        let mut owed = Vec::new();
        for (count, rules) in [(waiting, PATIENT), (dead, IMPATIENT)] {
            let field = Field::single(&server, &bench.receiver, Temper::Failing, rules).await?;
            bench.measure(&server, &field, filling(count)).await.context("filling the store with failures")?;
            bench.wait_for_failures(&field.endpoints, count.into()).await;
            owed.push(field);
        }
        let pages = Pages::of(&server, &big, &owed[0], &owed[1]).await?;
        let visitor = Visitor::sign_in(&server).await?;

        bench.progress.step("opening each page");
        let at_rest = Times::new(&pages);
        for _ in 0..OPENED_AT_REST {
            for number in 0..pages.0.len() {
                visitor.open(&pages, number, &at_rest).await?;
            }
        }

        let field = Field::lay_out(&server, &bench.receiver, Shape::InTurn, Temper::Healthy).await?;
        let (full_load, steady_load) = (bench.full_load(), bench.steady_load(bench.settings.duration()));
        bench.warm_up(&server, &field, full_load).await?;
        let (mut full, mut steady) = ((vec![], vec![]), (vec![], vec![]));
        let (under_load, at_steady) = (Times::new(&pages), Times::new(&pages));
        for round in 1..=bench.settings.runs {
            for (load, runs, times, name) in
                [(full_load, &mut full, &under_load, "full load"), (steady_load, &mut steady, &at_steady, "steady")]
            {
                bench.progress.step(&format!("round {round}: {name}, nobody looks"));
                runs.0.push(bench.measure(&server, &field, load).await?);
                bench.progress.step(&format!("round {round}: {name}, {LOOKERS} look"));
                let lookers = visitor.come(&pages, times, &field.ids[0].0);
                runs.1.push(bench.measure(&server, &field, load).await?);
                lookers.leave().await?;
            }
        }
        server.end(Stop::Asked).await?;
        let opened = under_load.count() + at_steady.count();
        let times = pages.0.iter().enumerate().map(|(number, (page, _))| PageTimes {
            page,
            at_rest_median: at_rest.median(number),
            at_rest_max: at_rest.max(number),
            under_load_median: under_load.median(number),
            under_load_max: under_load.max(number),
        });
        Ok(Looking {
            messages: count.into(),
            waiting: waiting.into(),
            dead: dead.into(),
            pages: times.collect(),
            lookers: LOOKERS,
            full: Sides::of(full)?,
            steady: Sides::of(steady)?,
            opened,
        })
    }

    /// The slowest that any page was.
    pub fn slowest(&self, pick: fn(&PageTimes) -> f64) -> Option<f64> {
        self.pages.iter().map(pick).max_by(f64::total_cmp)
    }
}

/// Names of pages, and where they are.
#[derive(Clone)]
struct Pages(Arc<Vec<(&'static str, String)>>);

impl Pages {
    async fn of(server: &Server, big: &Field, waiting: &Field, dead: &Field) -> Result<Pages> {
        let (app, endpoint) = &big.ids[0];
        let (app_waiting, endpoint_waiting) = &waiting.ids[0];
        let (app_dead, endpoint_dead) = &dead.ids[0];
        let message = server.api.newest(&format!("/api/v1/app/{app}/msg")).await?;
        let message_dead = server.api.newest(&format!("/api/v1/app/{app_dead}/msg")).await?;
        let pages = vec![
            ("overview, an hour", "/overview".to_owned()),
            ("overview, a day", "/overview?period=day".to_owned()),
            ("overview, a week", "/overview?period=week".to_owned()),
            ("applications", "/apps".to_owned()),
            ("an application", format!("/apps/{app}")),
            ("one with much waiting", format!("/apps/{app_waiting}")),
            ("one with many dead letters", format!("/apps/{app_dead}")),
            ("an endpoint", format!("/apps/{app}/endpoints/{endpoint}")),
            ("one with much waiting (endpoint)", format!("/apps/{app_waiting}/endpoints/{endpoint_waiting}")),
            ("one with many dead letters (endpoint)", format!("/apps/{app_dead}/endpoints/{endpoint_dead}")),
            ("messages", format!("/apps/{app}/messages")),
            ("messages of a type", format!("/apps/{app}/messages?type=bench.event")),
            ("messages of a type that none has", format!("/apps/{app}/messages?type=no.such")),
            ("messages with a tag that none has", format!("/apps/{app}/messages?tag=none")),
            ("messages that stand as none does", format!("/apps/{app}/messages?status=2")),
            (
                "messages given up at an endpoint",
                format!("/apps/{app_dead}/messages?status=2&endpoint={endpoint_dead}"),
            ),
            ("messages long ago", format!("/apps/{app}/messages?to=2020-01-01T00:00")),
            ("a message", format!("/apps/{app}/messages/{message}")),
            ("a message that is dead", format!("/apps/{app_dead}/messages/{message_dead}")),
            ("dead letters", format!("/apps/{app_dead}/dead-letters")),
            ("dead letters of an endpoint", format!("/apps/{app_dead}/dead-letters?endpoint={endpoint_dead}")),
            ("dead letters of a type that none has", format!("/apps/{app_dead}/dead-letters?type=no.such")),
            ("a schedule", "/schedule".to_owned()),
            ("an endpoint's schedule", format!("/apps/{app}/endpoints/{endpoint}/schedule")),
            ("an endpoint's form", format!("/apps/{app}/endpoints/{endpoint}/edit")),
            ("live", format!("/apps/{app}/live")),
            ("event types", "/event-types".to_owned()),
            ("tasks", "/tasks".to_owned()),
            ("alerts", "/alerts".to_owned()),
            ("nodes", "/nodes".to_owned()),
            ("settings", "/settings".to_owned()),
            ("API keys", "/api-keys".to_owned()),
            ("audit log", "/audit".to_owned()),
        ];
        Ok(Pages(Arc::new(pages)))
    }
}

/// How long each page took, each time.
#[derive(Clone)]
struct Times(Arc<Mutex<Vec<Vec<Duration>>>>);

impl Times {
    fn new(pages: &Pages) -> Times {
        Times(Arc::new(Mutex::new(vec![Vec::new(); pages.0.len()])))
    }

    fn note(&self, number: usize, took: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[number].push(took);
    }

    fn sorted(&self, number: usize) -> Vec<f64> {
        let times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut times: Vec<f64> = times[number].iter().map(|took| took.as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        times
    }

    fn median(&self, number: usize) -> f64 {
        let times = self.sorted(number);
        times.get(times.len() / 2).copied().unwrap_or(0.0)
    }

    fn max(&self, number: usize) -> f64 {
        self.sorted(number).last().copied().unwrap_or(0.0)
    }

    fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|times| times.len() as u64).sum()
    }
}

/// Somebody who has signed in.
#[derive(Clone)]
struct Visitor {
    address: SocketAddr,
    cookie: HeaderValue,
}

impl Visitor {
    async fn sign_in(server: &Server) -> Result<Visitor> {
        let address = server.api.address();
        let form = Request::post("/sign-in")
            .header(HOST, address.to_string())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(format!("token={}", server.api.token()).into()))?;
        let answer = Connection::open(address).await?.send_within(PATIENCE, form).await.context("signing in")?;
        let cookie = answer.headers.get(SET_COOKIE).context("signing in gave no session")?;
        let pair = cookie.to_str()?.split(';').next().unwrap_or_default();
        Ok(Visitor { address, cookie: HeaderValue::from_str(pair)? })
    }

    fn request(&self, path: &str) -> Result<Request<Full<Bytes>>> {
        let request = Request::get(path).header(HOST, self.address.to_string()).header(COOKIE, self.cookie.clone());
        Ok(request.body(Full::default())?)
    }

    async fn open(&self, pages: &Pages, number: usize, times: &Times) -> Result<()> {
        let path = &pages.0[number].1;
        let mut connection = Connection::open(self.address).await?;
        let start = Instant::now();
        let answer = connection.send_within(PATIENCE, self.request(path)?).await.with_context(|| path.clone())?;
        times.note(number, start.elapsed());
        ensure!(answer.status == StatusCode::OK, "{path} answered {}", answer.status);
        Ok(())
    }

    /// Several people come to look, and one of them at an application's live list.
    fn come(&self, pages: &Pages, times: &Times, app: &str) -> Lookers {
        let mut tasks = JoinSet::new();
        for looker in 0..LOOKERS {
            let (visitor, pages, times) = (self.clone(), pages.clone(), times.clone());
            tasks.spawn(async move {
                let mut glances = tokio::time::interval(GLANCE);
                // Each begins at another page.
                for turn in looker * pages.0.len() / LOOKERS.. {
                    glances.tick().await;
                    visitor.open(&pages, turn % pages.0.len(), &times).await?;
                }
                Ok(())
            });
        }
        let (visitor, live) = (self.clone(), format!("/apps/{app}/live/events"));
        tasks.spawn(async move {
            let request = visitor.request(&live)?;
            Connection::open(visitor.address).await?.follow(request).await
        });
        Lookers(tasks)
    }
}

struct Lookers(JoinSet<Result<()>>);

impl Lookers {
    /// Fails if one of them could not look.
    async fn leave(mut self) -> Result<()> {
        if let Some(ended) = self.0.try_join_next() {
            ended.context("looking")??;
        }
        self.0.shutdown().await;
        Ok(())
    }
}

/// One failure, and it is dead.
pub const IMPATIENT: &str = r#"{"circuitBreaker": false, "autoDisable": false, "retryPolicy": {"maxAttempts": 1}}"#;
/// A single endpoint should take as much as ten.
pub const WIDE: &str = r#"{"maxInFlight": 100}"#;
const OPENED_AT_REST: usize = 7;
const LOOKERS: usize = 5;
const GLANCE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);
