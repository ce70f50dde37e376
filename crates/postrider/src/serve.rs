//! Puts the parts together and runs them: the one place that knows them all.

use crate::{
    alerts::{
        self,
        mail::{Mailer, Pace, Post},
        owners::Owners,
    },
    clock,
    config::Settings,
    credentials::{Credentials, key_text::KeyTexts},
    dashboard::{self, Sessions},
    deployment::Deployment,
    directory::Directory,
    dispatch::{Dispatch, Means},
    expiry::Lookout,
    figures::Figures,
    http::{self, Api, ApiSettings, auth::Environment, server, tls::Identity},
    ids::IdCodec,
    ingest::Ingest,
    outbox::{Desk, Relay},
    rotation::Rotation,
    standing::Standings,
    statistics::Statistics,
    tasks::Tasks,
    telemetry::{Tops, TraceSettings, Traces},
    tokens::Tokens,
    transport::{AddressGuard, Transport, TransportConfig},
};
use anyhow::Context;
use axum::{Router, extract::State, routing::get};
use metrics_exporter_prometheus::PrometheusHandle;
use postrider_store::{IDEMPOTENCY_MEMORY, Retention, Store, marks, step};
use rand::{SeedableRng, rngs::StdRng};
use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    net::TcpListener,
    signal::unix,
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
};

/// Alerts that may wait to be mailed.
const MAIL_QUEUE_MAX: usize = 1_000;

/// How often it is looked whether the store is still there.
const STORE_EVERY: Duration = Duration::from_secs(1);

/// More than the allocator's second.
const START_IS_OVER: Duration = Duration::from_secs(2);

/// A running server.
pub struct Server {
    address: SocketAddr,
    credentials: Arc<Credentials>,
    store: Arc<dyn Store>,
    statistics: Arc<Statistics>,
    grace: Duration,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    dispatching: JoinHandle<()>,
    relaying: JoinSet<()>,
    /// What ends with the server, wherever it is.
    beside: JoinSet<()>,
    traces: Option<Arc<Traces>>,
}

/// Runs a server until a signal ends it.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    if let Some(crash_at) = std::env::var_os("CRASH_AT").filter(|_| marks::COMPILED_IN) {
        marks::arm(&crash_at.to_string_lossy()).map_err(anyhow::Error::msg)?;
    }
    let metrics = crate::telemetry::start_metrics()?;
    let mut interrupt = unix::signal(unix::SignalKind::interrupt())?;
    let mut terminate = unix::signal(unix::SignalKind::terminate())?;
    let data = settings.data.display().to_string();
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let mut server = Server::start(settings, metrics).await?;
    tokio::spawn(give_back_what_the_start_took());
    tracing::info!("listening on {scheme}://{}; for an API token run: postrider token --data {data}", server.address());
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = server.broken() => anyhow::bail!("a part of the server ended by itself; start it again, nothing is lost"),
    }
    tracing::info!("stopping: requests under way are finished; a second signal ends it at once");
    tokio::select! {
        () = server.stop() => tracing::info!("stopped"),
        _ = interrupt.recv() => tracing::warn!("ended at once; what was under way is sent again at the next start"),
        _ = terminate.recv() => tracing::warn!("ended at once; what was under way is sent again at the next start"),
    }
    Ok(())
}

/// To make the API's document of its routes, a start takes some 15 MiB that an idle server never needs again. The allocator
/// gives back what has been free for a second, but not by a clock of its own: it looks at some of what threads free, and at all
/// of it when one ends. Only a thread that has allocated something is known to it.
async fn give_back_what_the_start_took() {
    tokio::time::sleep(START_IS_OVER).await;
    let ended = std::thread::Builder::new().spawn(|| drop(std::hint::black_box(vec![0_u8])));
    // Without it that stays until some other thread ends.
    if let Err(error) = ended {
        tracing::debug!(%error, "could not start a thread");
    }
}

impl Server {
    pub async fn start(settings: Settings, metrics: PrometheusHandle) -> anyhow::Result<Self> {
        // The port first: if it is taken, nothing else should have happened.
        let listener = TcpListener::bind(settings.listen)
            .await
            .with_context(|| format!("listening on {}; is another server running there?", settings.listen))?;
        let address = listener.local_addr()?;
        let identity = settings.tls.clone().map(Identity::read).transpose()?;
        let Deployment { keyring, vault, store } = Deployment::open(&settings).await?;
        step!("start.opened");
        let mut beside = JoinSet::new();
        let mut follower = clock::Follower::default();
        follower.look(&*store).await?;
        beside.spawn({
            let store = Arc::clone(&store);
            async move { follower.keep(&*store).await }
        });
        let ids = IdCodec::new(*keyring.ids());
        let tokens = Arc::new(Tokens::new(&settings.tokens, &keyring, ids.clone())?);
        let texts = KeyTexts::new(ids.clone(), keyring.tokens());
        let is_secure =
            settings.tls.is_some() || settings.public_url.as_ref().is_some_and(|url| url.scheme() == "https");
        let sessions = Sessions::new(keyring.tokens(), clock::now, is_secure);
        let credentials = Arc::new(Credentials::new(tokens, texts, Arc::clone(&store)));
        beside.spawn({
            let credentials = Arc::clone(&credentials);
            async move { credentials.keep().await }
        });

        let guard = AddressGuard::new(settings.allow_subnets.clone()).opening_ports(settings.allow_ports.clone());
        let extra_ca_pem = read_pem(settings.extra_ca_file.as_deref())?;
        let https_only = settings.https_only;
        let transport = Transport::new(TransportConfig {
            extra_ca_pem: extra_ca_pem.clone(),
            https_only,
            proxy: settings.egress_proxy.clone(),
            ..TransportConfig::new(guard.clone())
        })?;
        let guard = Arc::new(guard);
        let rules = Arc::new(settings.rules.layer());
        let directory =
            Arc::new(Directory::new(Arc::clone(&store), Arc::clone(&vault), Arc::clone(&guard), Arc::clone(&rules)));
        let tasks = Arc::new(Tasks::default());
        let (stop, stopped) = watch::channel(false);

        let statistics = Arc::new(Statistics::default());
        let start_traces = |chosen: &TraceSettings| {
            Traces::start(chosen, ids.clone(), &settings.node_name, extra_ca_pem.as_deref()).map(Arc::new)
        };
        let traces = settings.traces.as_ref().map(start_traces).transpose()?;
        let tops = Arc::new(Tops::new(settings.metrics_top, ids.clone()));
        let (bell, told) = alerts::Alerts::new(alerts::watch::Watch::over(settings.alerts.window));
        let bell = Arc::new(bell);
        let mailer = settings
            .mail
            .as_ref()
            .map(|mail| Mailer::new(mail, &settings.node_name, extra_ca_pem.as_deref()).map(Arc::new));
        let mailer = mailer.transpose()?;
        let mail = mailer.as_ref().map(|mailer| {
            let (mail, queue) = mpsc::channel(MAIL_QUEUE_MAX);
            beside.spawn(Post { mailer: Arc::clone(mailer), queue, pace: Pace::default() }.keep());
            mail
        });
        let named = settings.mail.as_ref().map(|mail| mail.owners.clone()).unwrap_or_default();
        let owners = mailer.as_ref().filter(|_| !named.is_empty()).map(|mailer| {
            let (mail, queue) = mpsc::channel(MAIL_QUEUE_MAX);
            let (mailer, directory) = (Arc::clone(mailer), Arc::clone(&directory));
            beside.spawn(Owners { mailer, queue, named, directory, ids: ids.clone(), pace: Pace::default() }.keep());
            mail
        });
        beside.spawn(alerts::teller::Teller { store: Arc::clone(&store), queue: told, mail, owners }.keep());
        let ingest = Ingest::new(Arc::clone(&store), Arc::clone(&directory), clock::own());
        let ingest = ingest.with_rates(settings.ingest_rates).with_statistics(Arc::clone(&statistics));
        let ingest = Arc::new(ingest.with_tops(Arc::clone(&tops)).with_traces(traces.clone()));
        let dispatch = Dispatch::new(Means {
            store: Arc::clone(&store),
            directory: Arc::clone(&directory),
            post: Arc::new(transport),
            ids: ids.clone(),
            tasks: Arc::clone(&tasks),
            clock: clock::own(),
            rng: system_rng()?,
        })
        .with_requests_max(requests_max())
        .with_statistics(Arc::clone(&statistics))
        .keeping(settings.attempt_headers)
        .holding_up(Arc::clone(ingest.gate()))
        .watched(Arc::clone(&tops), traces.clone())
        .with_alerts(Arc::clone(&bell));
        let view = dispatch.view();
        let dispatching = tokio::spawn(dispatch.run(stopped.clone()));
        let retention = Retention {
            payloads: settings.retention_payloads,
            attempts: settings.retention_attempts,
            dead_letters: settings.retention_dead_letters,
            idempotency: IDEMPOTENCY_MEMORY,
        };
        beside.spawn({
            let (tasks, store, directory) = (Arc::clone(&tasks), Arc::clone(&store), Arc::clone(&directory));
            async move { tasks.run(store, directory, retention, clock::own()).await }
        });
        let figures = Figures {
            metrics: metrics.clone(),
            store: Arc::clone(&store),
            view,
            tops: Arc::clone(&tops),
            statistics: Arc::clone(&statistics),
            clock: clock::own(),
        };
        beside.spawn(figures.keep());
        beside.spawn({
            let (statistics, store) = (Arc::clone(&statistics), Arc::clone(&store));
            async move { statistics.keep(&*store, clock::now).await }
        });
        let lookout = alerts::lookout::Lookout::new(
            Arc::clone(&store),
            Arc::clone(&directory),
            Arc::clone(&bell),
            ids.clone(),
            (settings.alerts, settings.node_name.clone()),
            clock::own(),
        );
        beside.spawn(lookout.keep());
        let rotation = Rotation {
            folder: settings.encryption_keys().is_none().then(|| settings.data.clone()),
            vault: Arc::clone(&vault),
            store: Arc::clone(&store),
            directory: Arc::clone(&directory),
        };
        beside.spawn(rotation.keep(system_rng()?));
        let lookout = Lookout {
            store: Arc::clone(&store),
            vault: Arc::clone(&vault),
            ids: ids.clone(),
            own: settings.tls.clone(),
            clock: clock::own(),
        };
        beside.spawn(lookout.keep());
        let tls = identity.as_ref().map(Identity::acceptor);
        if let Some(identity) = identity {
            beside.spawn(identity.keep());
        }

        let teller = Arc::new(alerts::desk::Desk {
            store: Arc::clone(&store),
            directory: Arc::clone(&directory),
            ingest: Arc::clone(&ingest),
            ids: ids.clone(),
        });
        beside.spawn(Arc::clone(&teller).keep());
        let desk = Arc::new(Desk {
            store: Arc::clone(&store),
            directory: Arc::clone(&directory),
            ingest: Arc::clone(&ingest),
            ids: ids.clone(),
            body_max: settings.body_max,
            retention,
        });
        let mut relaying = JoinSet::new();
        for outbox in settings.outboxes {
            let ca_pem = read_pem(outbox.ca_file.as_deref())?;
            relaying.spawn(Relay::new(outbox, ca_pem, Arc::clone(&desk), system_rng()?).run(stopped.clone()));
        }

        let (listens, data) = (address.to_string(), settings.data.display().to_string());
        let in_effect = settings.in_effect.into_iter().map(|setting| {
            let setting = setting.came_to("listen", &listens).came_to("data", &data);
            setting.came_to("node_name", &settings.node_name)
        });
        let in_effect = in_effect.collect();
        let public_url = settings.public_url.as_ref().map(|url| url.as_str().trim_end_matches('/').to_owned());
        let api = Arc::new(Api {
            guesses: http::guesses::Guesses::default(),
            key_guesses: http::guesses::Guesses::default(),
            tails: http::tail::Tails::new(stopped.clone()),
            standings: Standings::default(),
            refusals: http::source_log::Refusals::new(Arc::clone(&store)),
            records: http::auth::records::Records::new(Arc::clone(&store)),
            ids,
            vault,
            credentials: Arc::clone(&credentials),
            ingest,
            directory,
            tasks,
            alerts: bell,
            trial: alerts::trial::Trial { desk: teller, mailer },
            guard,
            clock: clock::now,
            rng: Mutex::new(system_rng()?),
            settings: ApiSettings {
                public_url: public_url.clone(),
                body_max: settings.body_max,
                within_tls: settings.tls.is_some(),
                https_only: settings.https_only,
                default_signature_type: settings.default_signature_type,
                rules,
                node_name: settings.node_name.clone(),
                started_at: clock::now(),
                in_effect,
            },
        });
        let router = dashboard::over(
            metrics_route(metrics, tops, Arc::clone(&api)).merge(http::router(api)),
            sessions,
            &settings.portal_frames,
            public_url,
        );
        let limits = server::Limits {
            connections_max: settings.connections_max,
            connections_per_address_max: settings.connections_per_address_max,
            ..server::Limits::default()
        };
        let serving = tokio::spawn(server::serve(listener, tls, router, limits, until(stopped)));
        step!("start.serving");
        Ok(Self {
            address,
            credentials,
            store,
            statistics,
            grace: settings.shutdown_grace,
            stop,
            serving,
            dispatching,
            relaying,
            beside,
            traces,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn tokens(&self) -> &Tokens {
        self.credentials.tokens()
    }

    /// Completes if something that should run for as long as the server does has ended.
    async fn broken(&mut self) {
        tokio::select! {
            _ = &mut self.serving => {}
            _ = &mut self.dispatching => {}
            Some(_) = self.relaying.join_next() => {}
            () = ended(&*self.store) => {}
        }
    }

    /// Takes nothing new, lets what is under way finish within the time of grace, and closes the store.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        step!("stop.begun");
        let Self { mut relaying, .. } = self;
        let relayed = async { while relaying.join_next().await.is_some() {} };
        let finished = async { (self.serving.await, relayed.await, self.dispatching.await) };
        if tokio::time::timeout(self.grace, finished).await.is_err() {
            tracing::warn!("some requests outlasted the time of grace; they are sent again at the next start");
        }
        step!("stop.drained");
        drop(self.beside);
        if let Some(traces) = &self.traces {
            traces.finish().await;
        }
        self.credentials.note_uses().await;
        if let Err(error) = self.statistics.write(&*self.store, true).await {
            tracing::warn!(%error, "the last statistics could not be written");
        }
        self.store.close().await;
        step!("stop.closed");
    }
}

fn read_pem(path: Option<&Path>) -> anyhow::Result<Option<Vec<u8>>> {
    path.map(|path| std::fs::read(path).with_context(|| format!("reading {}", path.display()))).transpose()
}

pub(crate) fn system_rng() -> anyhow::Result<StdRng> {
    StdRng::try_from_rng(&mut rand::rngs::SysRng).context("asking the system for random numbers")
}

/// Half of the files that may be open: the other half is for who calls us, for connections at rest and for the store.
/// Requests that hang would otherwise leave none for these, nor for the requests of others.
fn requests_max() -> usize {
    let files = rlimit::Resource::NOFILE.get_soft().unwrap_or(u64::MAX);
    usize::try_from(files / 2).unwrap_or(usize::MAX)
}

fn metrics_route(metrics: PrometheusHandle, tops: Arc<Tops>, api: Arc<Api>) -> Router {
    let show = |_: Environment, State(_): State<Arc<Api>>| async move { Figures::render(&metrics, &tops) };
    Router::new().route("/metrics", get(show)).with_state(api)
}

/// A part of the store that has died answers nobody: those who need the answer would wait for it for ever.
async fn ended(store: &dyn Store) {
    while store.is_open() {
        tokio::time::sleep(STORE_EVERY).await;
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics_exporter_prometheus::PrometheusBuilder;

    #[tokio::test]
    async fn a_server_whose_store_has_ended_does_not_go_on_without_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let settings = Settings { listen, data: folder.path().to_owned(), ..Settings::defaults() };
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let mut server = Server::start(settings, metrics).await.expect("it starts");
        assert!(server.store.is_open());
        server.store.close().await;
        server.broken().await;
    }
}
