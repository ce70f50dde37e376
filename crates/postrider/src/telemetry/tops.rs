//! Figures by endpoint, application and event type: of the busiest by name, of all others together.
//!
//! Whoever can make endpoints or choose event types could otherwise make as many series as they like, and every one of them
//! costs this process and Prometheus memory (decision 19). So a table has room for a set number of names. One that finds no
//! room is counted under `other`, and takes the place of the idlest one if it is much busier. Names that nothing happened to
//! for an hour leave.
//!
//! An attempt costs three lookups and a dozen atomic additions, and allocates nothing; labels are made when a name comes in.

use metrics_exporter_prometheus::formatting::{sanitize_label_value, write_help_line, write_type_line};
use postrider_engine::{
    AppKey, EndpointKey,
    policy::{Class, Standing},
};
use rustc_hash::FxBuildHasher;
use std::{
    borrow::Borrow,
    collections::HashMap,
    fmt::Write,
    hash::{BuildHasher, Hash, RandomState},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::names;
use crate::{ids::IdCodec, words::class_name};

/// How often names are looked through for such as are to come in or leave.
pub const REVIEW_EVERY: Duration = Duration::from_secs(60);

/// A name that nothing happened to in so many reviews leaves: after an hour.
const IDLE_REVIEWS_MAX: u64 = 60;

/// A newcomer must have had so many times as much to do as the one whose place it takes, so that two that are alike do not
/// take it from one another every minute.
const BUSIER: u64 = 2;

const REVIEWS_PER_HOUR: usize = 60;

/// Longer names of event types are not shown, so that a page of figures has a bound.
const EVENT_TYPE_LEN_MAX: usize = 128;

/// For all that have no name of their own here.
const OTHER: &str = "other";

#[derive(Default)]
pub struct Tops {
    ids: Option<IdCodec>,
    endpoints: Top<EndpointKey, FxBuildHasher>,
    applications: Top<AppKey, FxBuildHasher>,
    event_types: Top<String>,
    gauges: Mutex<Vec<(EndpointKey, EndpointGauges)>>,
}

/// Whose attempt or delivery it was.
#[derive(Clone, Copy)]
pub struct Whose<'a> {
    pub endpoint: EndpointKey,
    pub app: AppKey,
    pub event_type: &'a str,
}

/// What is not counted as it happens, but looked up.
#[derive(Clone, Copy, Debug)]
pub struct EndpointGauges {
    pub waiting: u64,
    /// How long the first of it has been due.
    pub oldest_due: Duration,
    pub breaker: Standing,
}

impl Tops {
    /// With so many names of each kind. Of none, if it is zero: not even the rest is counted then.
    pub fn new(names_max: usize, ids: IdCodec) -> Self {
        Self {
            ids: Some(ids),
            endpoints: Top::new(names_max),
            applications: Top::new(names_max),
            event_types: Top::new(names_max),
            gauges: Mutex::default(),
        }
    }

    fn each(&self, whose: Whose<'_>, count: impl Fn(&Figures)) {
        let Some(ids) = &self.ids else { return };
        let Whose { endpoint, app, event_type } = whose;
        self.endpoints.count(
            &endpoint,
            || Some((endpoint, vec![("application", ids.id_of(app)), ("endpoint", ids.id_of(endpoint))])),
            &count,
        );
        self.applications.count(&app, || Some((app, vec![("application", ids.id_of(app))])), &count);
        self.event_types.count(event_type, || named(event_type), &count);
    }

    /// With `arrived_after`, the delivery has arrived with it, so long after it was accepted or replayed.
    pub fn attempt(&self, whose: Whose<'_>, class: Class, took: Duration, arrived_after: Option<Duration>) {
        self.each(whose, |figures| {
            figures.attempts[class_index(class)].fetch_add(1, Relaxed);
            figures.attempt_duration.record(took, &ATTEMPT_SECONDS);
            if let Some(after) = arrived_after {
                figures.delivered.fetch_add(1, Relaxed);
                figures.delivery_duration.record(after, &DELIVERY_SECONDS);
            }
        });
    }

    pub fn dead(&self, whose: Whose<'_>) {
        self.each(whose, |figures| {
            figures.dead.fetch_add(1, Relaxed);
        });
    }

    pub fn accepted(&self, app: AppKey, event_type: &str) {
        let Some(ids) = &self.ids else { return };
        let count = |figures: &Figures| {
            figures.accepted.fetch_add(1, Relaxed);
        };
        self.applications.count(&app, || Some((app, vec![("application", ids.id_of(app))])), &count);
        self.event_types.count(event_type, || named(event_type), &count);
    }

    /// The endpoints that have a name here.
    pub fn endpoints(&self) -> Vec<EndpointKey> {
        self.endpoints.shown.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// Takes the place of what was known before.
    pub fn set_gauges(&self, gauges: Vec<(EndpointKey, EndpointGauges)>) {
        *self.gauges.lock().unwrap_or_else(PoisonError::into_inner) = gauges;
    }

    /// Every `REVIEW_EVERY`.
    pub fn review(&self) {
        self.endpoints.review();
        self.applications.review();
        self.event_types.review();
    }

    /// In Prometheus' text format, to stand behind the other metrics.
    pub fn render(&self) -> String {
        let mut page = String::new();
        if self.ids.is_none() {
            return page;
        }
        self.endpoints.render(&mut page, &names::BY_ENDPOINT, &["application", "endpoint"]);
        self.applications.render(&mut page, &names::BY_APPLICATION, &["application"]);
        self.event_types.render(&mut page, &names::BY_EVENT_TYPE, &["event_type"]);
        self.render_gauges(&mut page);
        page
    }

    fn render_gauges(&self, page: &mut String) {
        let gauges = self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = self.endpoints.shown.read().unwrap_or_else(PoisonError::into_inner);
        let gauges: Vec<_> = gauges.iter().filter_map(|(key, its)| Some((&shown.get(key)?.labels, its))).collect();
        type Read = fn(&EndpointGauges) -> f64;
        let kinds: [(&str, Read); 3] = [
            (names::ENDPOINT_WAITING, |its| its.waiting as f64),
            (names::ENDPOINT_OLDEST_DUE, |its| its.oldest_due.as_secs_f64()),
            (names::ENDPOINT_BREAKER, |its| match its.breaker {
                Standing::Closed => 0.0,
                Standing::HalfOpen => 1.0,
                Standing::Open { .. } => 2.0,
            }),
        ];
        for (name, read) in kinds.into_iter().filter(|_| !gauges.is_empty()) {
            head(page, name);
            for (labels, its) in &gauges {
                line(page, name, labels, "", read(its));
            }
        }
    }
}

type Labels = String;

/// The name as it comes in, if it may be shown.
fn named(event_type: &str) -> Option<(String, Vec<(&'static str, String)>)> {
    let is_short = event_type.len() <= EVENT_TYPE_LEN_MAX;
    is_short.then(|| (event_type.to_owned(), vec![("event_type", event_type.to_owned())]))
}

/// The busiest of one kind.
///
/// `S` may be quick where nobody chooses the names.
struct Top<K, S = RandomState> {
    names_max: usize,
    shown: RwLock<HashMap<K, Arc<Figures>, S>>,
    other: Figures,
    /// How much those have had to do since the last review that found no room. As many as there is room for, at most.
    rivals: Mutex<HashMap<K, Rival>>,
}

struct Rival {
    busy: u64,
    labels: Labels,
}

impl<K, S: Default> Default for Top<K, S> {
    fn default() -> Self {
        let (shown, rivals) = (RwLock::default(), Mutex::default());
        Self { names_max: 0, shown, other: Figures::default(), rivals }
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher + Default> Top<K, S> {
    fn new(names_max: usize) -> Self {
        Self { names_max, ..Self::default() }
    }

    fn count<Q>(&self, key: &Q, name: impl Fn() -> Option<(K, Vec<(&'static str, String)>)>, count: &impl Fn(&Figures))
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if self.names_max == 0 {
            return;
        }
        let has_room = {
            let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(figures) = shown.get(key) {
                figures.busy.fetch_add(1, Relaxed);
                return count(figures);
            }
            shown.len() < self.names_max
        };
        if has_room && let Some((key, labels)) = name() {
            let mut shown = self.shown.write().unwrap_or_else(PoisonError::into_inner);
            // Others may have been quicker.
            if shown.len() < self.names_max || shown.contains_key(key.borrow()) {
                let figures = shown.entry(key).or_insert_with(|| Arc::new(Figures::of(written(labels), 0)));
                figures.busy.fetch_add(1, Relaxed);
                return count(figures);
            }
        } else if !has_room {
            self.note_rival(key, &name);
        }
        count(&self.other);
    }

    fn note_rival<Q>(&self, key: &Q, name: impl Fn() -> Option<(K, Vec<(&'static str, String)>)>)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let mut rivals = self.rivals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rival) = rivals.get_mut(key) {
            rival.busy += 1;
        } else if rivals.len() < self.names_max
            && let Some((key, labels)) = name()
        {
            rivals.insert(key, Rival { busy: 1, labels: written(labels) });
        }
    }

    /// How many names may make room for busier ones at once: all of them within an hour. Otherwise, who makes up names that
    /// nobody has used before could have all of them replaced by the minute, and no collector forgets a name so soon.
    fn changes_max(&self) -> usize {
        self.names_max.div_ceil(REVIEWS_PER_HOUR)
    }

    fn review(&self) {
        let rivals = std::mem::take(&mut *self.rivals.lock().unwrap_or_else(PoisonError::into_inner));
        let mut rivals: Vec<(K, Rival)> = rivals.into_iter().collect();
        rivals.sort_by_key(|(_, rival)| std::cmp::Reverse(rival.busy));
        let mut shown = self.shown.write().unwrap_or_else(PoisonError::into_inner);
        shown.retain(|_, figures| figures.is_lively());
        let mut idlest: Vec<(K, u64)> =
            shown.iter().map(|(key, its)| (key.clone(), its.busy.swap(0, Relaxed))).collect();
        idlest.sort_by_key(|(_, busy)| *busy);
        let mut idlest = idlest.into_iter();
        let mut changes = 0;
        for (key, rival) in rivals {
            if shown.len() >= self.names_max {
                if changes >= self.changes_max() {
                    break;
                }
                changes += 1;
                let Some((weakest, busy)) = idlest.next() else { break };
                if rival.busy <= busy.saturating_mul(BUSIER) {
                    break;
                }
                shown.remove(&weakest);
            }
            shown.insert(key, Arc::new(Figures::of(rival.labels, 0)));
        }
    }

    fn render(&self, page: &mut String, names: &names::ByName, labels: &[&'static str]) {
        let shown: Vec<Arc<Figures>> =
            self.shown.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let other = written(labels.iter().map(|label| (*label, OTHER.to_owned())).collect());
        let mut all: Vec<(&str, &Figures)> = shown.iter().map(|its| (its.labels.as_str(), &**its)).collect();
        all.sort_by_key(|(labels, _)| *labels);
        if self.other.is_used() {
            all.push((&other, &self.other));
        }
        if all.is_empty() {
            return;
        }
        if let Some(accepted) = names.accepted {
            head(page, accepted);
            for (labels, its) in &all {
                line(page, accepted, labels, "", its.accepted.load(Relaxed));
            }
        }
        head(page, names.attempts);
        for (labels, its) in &all {
            for class in CLASSES {
                let count = its.attempts[class_index(class)].load(Relaxed);
                if count > 0 {
                    line(page, names.attempts, labels, &format!("class=\"{}\"", class_name(class)), count);
                }
            }
        }
        head(page, names.deliveries);
        for (labels, its) in &all {
            for (result, count) in [("delivered", &its.delivered), ("dead", &its.dead)] {
                line(page, names.deliveries, labels, &format!("result=\"{result}\""), count.load(Relaxed));
            }
        }
        type Read = fn(&Figures) -> &Spread;
        let spreads: [(_, &[f64; BOUNDS], Read); 2] = [
            (names.attempt_duration, &ATTEMPT_SECONDS, |its| &its.attempt_duration),
            (names.delivery_duration, &DELIVERY_SECONDS, |its| &its.delivery_duration),
        ];
        for (name, bounds, read) in spreads {
            head(page, name);
            for (labels, its) in &all {
                read(its).render(page, name, labels, bounds);
            }
        }
    }
}

/// What is counted for one name.
#[derive(Default)]
struct Figures {
    labels: Labels,
    accepted: AtomicU64,
    attempts: [AtomicU64; CLASSES.len()],
    delivered: AtomicU64,
    dead: AtomicU64,
    attempt_duration: Spread,
    delivery_duration: Spread,
    /// Times that something was counted since the last review.
    busy: AtomicU64,
    /// Reviews in a row that found nothing counted.
    idle_reviews: AtomicU64,
}

impl Figures {
    fn of(labels: Labels, busy: u64) -> Self {
        Self { labels, busy: AtomicU64::new(busy), ..Self::default() }
    }

    fn is_used(&self) -> bool {
        let counted = self.attempts.iter().chain([&self.accepted, &self.delivered, &self.dead]);
        counted.into_iter().any(|count| count.load(Relaxed) > 0)
    }

    fn is_lively(&self) -> bool {
        if self.busy.load(Relaxed) > 0 {
            self.idle_reviews.store(0, Relaxed);
            return true;
        }
        self.idle_reviews.fetch_add(1, Relaxed) + 1 < IDLE_REVIEWS_MAX
    }
}

/// A histogram.
#[derive(Default)]
struct Spread {
    /// How many lay in each range; the last one has no end.
    counts: [AtomicU64; BOUNDS + 1],
    micros: AtomicU64,
}

impl Spread {
    fn record(&self, took: Duration, bounds: &[f64; BOUNDS]) {
        let seconds = took.as_secs_f64();
        let range = bounds.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS);
        self.counts[range].fetch_add(1, Relaxed);
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    fn render(&self, page: &mut String, name: &str, labels: &str, bounds: &[f64; BOUNDS]) {
        let mut up_to = 0;
        for (range, count) in self.counts.iter().enumerate() {
            up_to += count.load(Relaxed);
            let bound = bounds.get(range).map_or_else(|| "+Inf".to_owned(), f64::to_string);
            line(page, &format!("{name}_bucket"), labels, &format!("le=\"{bound}\""), up_to);
        }
        line(page, &format!("{name}_sum"), labels, "", Duration::from_micros(self.micros.load(Relaxed)).as_secs_f64());
        line(page, &format!("{name}_count"), labels, "", up_to);
    }
}

fn written(labels: Vec<(&'static str, String)>) -> Labels {
    let labels = labels.into_iter().map(|(name, value)| format!("{name}=\"{}\"", sanitize_label_value(&value)));
    labels.collect::<Vec<_>>().join(",")
}

fn head(page: &mut String, name: &str) {
    let metric = names::find(name).expect("what is rendered is in the table, as a test holds");
    write_help_line(page, name, None, None, metric.help);
    write_type_line(page, name, None, None, metric.kind.word());
}

fn line(page: &mut String, name: &str, labels: &str, further: &str, value: impl std::fmt::Display) {
    let comma = if further.is_empty() { "" } else { "," };
    writeln!(page, "{name}{{{labels}{comma}{further}}} {value}").expect("writing to a string does not fail");
}

pub const CLASSES: [Class; 5] = [Class::Delivered, Class::Transient, Class::Ambiguous, Class::Permanent, Class::Gone];

pub fn class_index(class: Class) -> usize {
    match class {
        Class::Delivered => 0,
        Class::Transient => 1,
        Class::Ambiguous => 2,
        Class::Permanent => 3,
        Class::Gone => 4,
    }
}

const BOUNDS: usize = 6;
/// Fewer than those of all attempts together have: every one of them is a series for every name.
const ATTEMPT_SECONDS: [f64; BOUNDS] = [0.05, 0.25, 1.0, 5.0, 15.0, 60.0];
/// From at once to what went through a long schedule of retries.
const DELIVERY_SECONDS: [f64; BOUNDS] = [1.0, 10.0, 60.0, 600.0, 3600.0, 86400.0];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn tops(names_max: usize) -> Tops {
        Tops::new(names_max, IdCodec::new([1; 16]))
    }

    fn whose(endpoint: i64, event_type: &str) -> Whose<'_> {
        Whose { endpoint: EndpointKey::new(endpoint), app: AppKey::new(endpoint % 7), event_type }
    }

    fn series(page: &str, metric: &str) -> Vec<String> {
        let starts = format!("{metric}{{");
        page.lines().filter(|line| line.starts_with(&starts)).map(str::to_owned).collect()
    }

    fn names_of(tops: &Tops) -> HashSet<i64> {
        tops.endpoints().into_iter().map(EndpointKey::raw).collect()
    }

    #[test]
    fn a_stranger_who_makes_up_names_makes_no_more_series() {
        let tops = tops(10);
        for number in 0..10_000 {
            let name = format!("made.up.{number}");
            tops.attempt(whose(number, &name), Class::Delivered, Duration::from_millis(3), None);
            tops.accepted(AppKey::new(number), &name);
            if number % 1_000 == 0 {
                tops.review();
            }
        }
        let page = tops.render();
        for metric in ["postrider_endpoint_attempts_total", "postrider_event_type_attempts_total"] {
            assert!(series(&page, metric).len() <= 11, "{metric}");
        }
        assert!(series(&page, "postrider_application_messages_accepted_total").len() <= 11);
        let rivals = tops.event_types.rivals.lock().expect("nobody panicked").len();
        assert!(rivals <= 10, "what waits for room is bounded too: {rivals}");
    }

    #[test]
    fn names_that_are_made_up_by_the_minute_replace_the_others_slowly() {
        let tops = tops(60);
        let mut seen = std::collections::BTreeSet::new();
        for minute in 0..60 {
            for number in 0..200 {
                let name = format!("made.up.{minute}.{number}");
                tops.attempt(whose(minute * 1_000 + number, &name), Class::Delivered, Duration::from_millis(3), None);
            }
            tops.review();
            let page = tops.render();
            let lines = series(&page, "postrider_event_type_attempts_total");
            seen.extend(lines.iter().filter_map(|line| Some(line.split_once('}')?.0.to_owned())));
        }
        assert!(seen.len() <= 60 + 60 + 1, "{} names within an hour", seen.len());
    }

    #[test]
    fn whoever_finds_no_room_is_counted_with_the_others() {
        let tops = tops(2);
        for endpoint in [1, 2, 3, 4] {
            tops.attempt(whose(endpoint, "a"), Class::Transient, Duration::from_secs(2), None);
            tops.dead(whose(endpoint, "a"));
        }
        let page = tops.render();
        let other = "{application=\"other\",endpoint=\"other\"";
        assert!(
            page.contains(&format!("postrider_endpoint_attempts_total{other},class=\"transient\"}} 2\n")),
            "{page}"
        );
        assert!(page.contains(&format!("postrider_endpoint_deliveries_total{other},result=\"dead\"}} 2\n")), "{page}");
        assert!(
            page.contains("postrider_event_type_attempts_total{event_type=\"a\",class=\"transient\"} 4\n"),
            "{page}"
        );
    }

    #[test]
    fn a_busy_newcomer_takes_the_place_of_the_idlest() {
        let tops = tops(2);
        let attempts = |endpoint, many| {
            for _ in 0..many {
                tops.attempt(whose(endpoint, "a"), Class::Delivered, Duration::ZERO, None);
            }
        };
        attempts(1, 10);
        attempts(2, 100);
        attempts(3, 20);
        tops.review();
        assert_eq!(names_of(&tops), HashSet::from([1, 2]), "not much busier");
        attempts(1, 10);
        attempts(2, 100);
        attempts(3, 21);
        tops.review();
        assert_eq!(names_of(&tops), HashSet::from([3, 2]));
    }

    #[test]
    fn a_name_that_nothing_happens_to_for_an_hour_leaves() {
        let tops = tops(2);
        tops.attempt(whose(1, "a"), Class::Delivered, Duration::ZERO, None);
        for _ in 0..IDLE_REVIEWS_MAX {
            tops.review();
            assert_eq!(names_of(&tops), HashSet::from([1]));
        }
        tops.review();
        assert!(names_of(&tops).is_empty() && !tops.render().contains("endpoint=\"ep_"));
    }

    #[test]
    fn a_long_name_has_no_series() {
        let tops = tops(10);
        tops.accepted(AppKey::new(1), &"x".repeat(EVENT_TYPE_LEN_MAX + 1));
        tops.accepted(AppKey::new(1), "y");
        let shown = series(&tops.render(), "postrider_event_type_messages_accepted_total");
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert!(shown.iter().any(|line| line.contains("event_type=\"other\"}")), "{shown:?}");
    }

    #[test]
    fn with_no_names_there_is_nothing() {
        let tops = tops(0);
        tops.attempt(whose(1, "a"), Class::Delivered, Duration::ZERO, None);
        assert_eq!(tops.render(), "");
    }

    #[test]
    fn the_ranges_of_a_histogram_add_up() {
        let tops = tops(1);
        for seconds in [0.01, 0.25, 0.3, 100.0] {
            tops.attempt(whose(1, "a"), Class::Delivered, Duration::from_secs_f64(seconds), None);
        }
        let page = tops.render();
        let found = series(&page, "postrider_event_type_attempt_duration_seconds_bucket");
        let counts: Vec<&str> = found.iter().filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(counts, ["1", "2", "3", "3", "3", "3", "4"]);
        assert!(
            page.contains("postrider_event_type_attempt_duration_seconds_sum{event_type=\"a\"} 100.56\n"),
            "{page}"
        );
        assert!(page.contains("postrider_event_type_attempt_duration_seconds_count{event_type=\"a\"} 4\n"), "{page}");
    }
}
