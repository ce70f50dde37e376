//! Applications and endpoints on a server, and what is sent to them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use http::Uri;

use crate::generator::{self, Application, Manner, Protocol, Target, Turns, Until};
use crate::ledger::Ledger;
use crate::payload;
use crate::receiver::{Endpoint, Receiver, Temper};
use crate::subject::Subject;

#[derive(Debug, Clone, Copy)]
pub enum Load {
    Closed { connections: usize, until: Until },
    Open { rate: u32, duration: Duration },
}

impl Load {
    pub async fn put_on(self, field: &Field, ledger: &Arc<Ledger>) -> Result<()> {
        match self {
            Load::Closed { connections, until } => {
                generator::closed_loop(&field.target, ledger, connections, until).await
            }
            Load::Open { rate, duration } => generator::open_loop(&field.target, ledger, rate, duration).await,
        }
    }

    /// The same for as long as warming up takes, and not for longer than it is measured.
    pub fn briefly(self, measured: Duration) -> Load {
        let duration = WARMING_UP.min(measured);
        match self {
            Load::Closed { connections, until: _ } => Load::Closed { connections, until: Until::Elapsed(duration) },
            Load::Open { rate, duration: _ } => Load::Open { rate, duration },
        }
    }
}

/// How messages are sent, where it is not as usual.
#[derive(Debug, Clone, Copy)]
pub struct How {
    pub manner: Manner,
    pub protocol: Protocol,
    pub turns: Turns,
    /// Bytes of a payload.
    pub len: usize,
}

impl Default for How {
    fn default() -> How {
        How { manner: Manner::Single, protocol: Protocol::Http1, turns: Turns::All, len: payload::LEN }
    }
}

impl How {
    /// Of a request, a little more than that.
    pub fn body_len(self) -> usize {
        let message = self.len + 64;
        match self.manner {
            Manner::Single => message,
            Manner::Batch(size) => message * usize::try_from(size).expect("a u32 fits") + 64,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// Ten applications with an endpoint each; messages go to them in turn.
    InTurn,
    /// The same with more applications, so that each of several nodes has some.
    InTurnOfMany,
    /// The same with so many.
    InTurnOf(usize),
    /// One application with so many endpoints; each message goes to all.
    FanOut(usize),
}

/// Applications and endpoints on a server, and who answers for them.
pub struct Field {
    pub target: Arc<Target>,
    pub endpoints: Vec<Endpoint>,
    /// Application and endpoint, as the server calls them.
    pub ids: Vec<(String, String)>,
    pub width: usize,
}

impl Field {
    pub async fn lay_out(subject: &impl Subject, receiver: &Receiver, shape: Shape, temper: Temper) -> Result<Field> {
        let (applications, width) = match shape {
            Shape::InTurn => (ENDPOINTS, 1),
            Shape::InTurnOfMany => (3 * ENDPOINTS, 1),
            Shape::InTurnOf(count) => (count, 1),
            Shape::FanOut(width) => (1, width),
        };
        let mut endpoints = Vec::with_capacity(applications * width);
        let mut wanted = Vec::with_capacity(applications);
        for _ in 0..applications {
            let columns = (0..width).map(|column| receiver.endpoint(temper, column));
            let first = endpoints.len();
            endpoints.extend(columns);
            wanted.push(endpoints[first..].iter().map(|endpoint: &Endpoint| endpoint.url.clone()).collect());
        }
        let owed = match temper {
            Temper::Healthy => u64::try_from(width)?,
            Temper::Failing | Temper::Hanging | Temper::Dripping => 0,
        };
        let (mut ids, mut owing) = (Vec::with_capacity(endpoints.len()), Vec::with_capacity(applications));
        for (application, made) in subject.api().create_many(wanted).await? {
            owing.push(Application { messages: messages(&application)?, owed });
            ids.extend(made.into_iter().map(|endpoint| (application.clone(), endpoint)));
        }
        Ok(Field { target: Field::target(subject, owing), endpoints, ids, width })
    }

    /// Applications with endpoints that nothing is sent to. Tells how many endpoints that makes.
    pub async fn make(subject: &impl Subject, receiver: &Receiver, applications: usize, each: usize) -> Result<usize> {
        // They could all have the same address; but what is kept of an address should count, too.
        let url = |_| receiver.endpoint(Temper::Healthy, 0).url;
        let wanted = (0..applications).map(|_| (0..each).map(url).collect()).collect();
        Ok(subject.api().create_many(wanted).await?.iter().map(|(_, endpoints)| endpoints.len()).sum())
    }

    /// One application with one endpoint.
    pub async fn single(subject: &impl Subject, receiver: &Receiver, temper: Temper, rules: &str) -> Result<Field> {
        let field = Field::lay_out(subject, receiver, Shape::InTurnOf(1), temper).await?;
        let (application, endpoint) = &field.ids[0];
        subject.api().patch_endpoint(application, endpoint, rules).await?;
        Ok(field)
    }

    /// Where to send to these applications, as usual.
    pub fn target(subject: &impl Subject, applications: Vec<Application>) -> Arc<Target> {
        let How { manner, protocol, turns, len } = How::default();
        let (ways, authorization) = (subject.ways(), subject.api().authorization());
        Arc::new(Target { ways, authorization, applications, turns, manner, protocol, len })
    }

    /// Sends otherwise from here on.
    pub fn send(&mut self, how: How) -> Result<()> {
        let target = Arc::get_mut(&mut self.target).expect("no producer outlives its measurement");
        let How { manner, protocol, turns, len } = how;
        for application in &mut target.applications {
            let mut place = application.messages.path().to_owned();
            if let Manner::Batch(_) = manner {
                place += "-batch";
            }
            if protocol == Protocol::Http2 {
                place = format!("http://{}{place}", target.ways[0].host.to_str()?);
            }
            application.messages = place.parse()?;
        }
        (target.manner, target.protocol, target.turns, target.len) = (manner, protocol, turns, len);
        Ok(())
    }

    pub fn expect_nothing_from_first(&mut self, count: usize) {
        let target = Arc::get_mut(&mut self.target).expect("no producer outlives its measurement");
        target.applications[..count].iter_mut().for_each(|application| application.owed = 0);
    }
}

pub fn messages(application: &str) -> Result<Uri> {
    Ok(format!("/api/v1/app/{application}/msg").parse()?)
}

/// Of a field that is no larger than it has to be.
pub const ENDPOINTS: usize = 10;
const WARMING_UP: Duration = Duration::from_secs(1);
