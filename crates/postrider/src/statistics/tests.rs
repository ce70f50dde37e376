use super::*;
use postrider_store::{Counted, SqliteStore, TalliesOf, TallyOf, TallySpan};

const APP: AppKey = AppKey::new(1);
const ENDPOINT: EndpointKey = EndpointKey::new(2);
const NOON: Timestamp = Timestamp::from_millis(1_800_014_400_000);

fn tried(at: Timestamp, class: Class, status: Option<u16>) -> Tried {
    let took = Duration::from_millis(3);
    let arrived_after = (class == Class::Delivered).then_some(Duration::from_secs(2));
    Tried { app: APP, endpoint: ENDPOINT, at, class, status, took, arrived_after }
}

async fn count(store: &SqliteStore, of: TallyOf, span: TallySpan, event: Event) -> Vec<u64> {
    let until = NOON.plus(Duration::from_hours(2));
    let found = store.tallies(TalliesOf { of, span, since: NOON, until }).await.expect("counts");
    let of_it = found.into_iter().filter(|Counted { what, .. }| Event::of(*what) == Some(event));
    of_it.map(|counted| counted.count).collect()
}

#[tokio::test(start_paused = true)]
async fn what_was_counted_is_written_by_minute_and_by_hour() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path(), NOON).expect("a store");
    let statistics = Statistics::default();
    let delivered = Event::Attempt(Class::Delivered);
    statistics.tried(&tried(NOON, Class::Delivered, Some(200)));
    statistics.tried(&tried(NOON.plus(Duration::from_secs(59)), Class::Transient, None));
    statistics.write(&store, false).await.expect("written");
    assert_eq!(count(&store, TallyOf::All, TallySpan::Minute, delivered).await, [1]);
    let of_it = count(&store, TallyOf::Endpoint(ENDPOINT), TallySpan::Hour, delivered).await;
    assert!(of_it.is_empty(), "its minute is not over");

    statistics.tried(&tried(NOON.plus(Duration::from_secs(61)), Class::Delivered, Some(204)));
    statistics.given_up(APP, ENDPOINT, NOON.plus(Duration::from_secs(62)));
    statistics.accepted(NOON.plus(Duration::from_secs(63)));
    statistics.write(&store, true).await.expect("written");
    statistics.write(&store, true).await.expect("nothing is written twice");
    assert_eq!(count(&store, TallyOf::All, TallySpan::Minute, delivered).await, [1, 1]);
    assert_eq!(count(&store, TallyOf::All, TallySpan::Hour, Event::Accepted).await, [1]);
    for of in [TallyOf::All, TallyOf::Application(APP), TallyOf::Endpoint(ENDPOINT)] {
        assert_eq!(count(&store, of, TallySpan::Hour, delivered).await, [2], "{of:?}");
        assert_eq!(count(&store, of, TallySpan::Hour, Event::Answer(0)).await, [1], "{of:?}");
        assert_eq!(count(&store, of, TallySpan::Hour, Event::GivenUp).await, [1], "{of:?}");
    }
    store.close().await;
}

#[test]
fn what_belongs_to_many_is_written_when_its_minute_is_over() {
    let mut board = Board::at(NOON);
    let (soon, later) = (NOON.plus(Duration::from_secs(50)), NOON.plus(Duration::from_secs(60)));
    for number in 0..150 {
        board.count(&[Event::GivenUp], Some((AppKey::new(number), EndpointKey::new(number))));
        assert_eq!(board.is_worth_writing(soon), number < 100, "{number}");
        assert!(board.is_worth_writing(later), "also if nothing happens any more");
    }
}

#[tokio::test(start_paused = true)]
async fn of_what_stands_the_last_look_counts_and_none_is_written_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path(), NOON).expect("a store");
    let statistics = Statistics::default();
    // Also of one who started anew, or took over.
    for (second, waiting) in [(0, 7), (5, 8), (60, 9), (65, 10), (130, 0)] {
        statistics.standing(Counts { waiting, dead: 1 }, NOON.plus(Duration::from_secs(second)));
        statistics.write(&store, false).await.expect("written");
    }
    assert_eq!(count(&store, TallyOf::All, TallySpan::Minute, Event::Waiting).await, [8, 10, 0]);
    assert_eq!(count(&store, TallyOf::All, TallySpan::Hour, Event::Waiting).await, [0]);
    let another = Statistics::default();
    another.standing(Counts { waiting: 4, dead: 1 }, NOON.plus(Duration::from_secs(135)));
    another.write(&store, false).await.expect("written");
    assert_eq!(count(&store, TallyOf::All, TallySpan::Minute, Event::Waiting).await, [8, 10, 4]);
    assert_eq!(count(&store, TallyOf::All, TallySpan::Minute, Event::Dead).await, [1, 1, 1]);
    store.close().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_store_does_not_take_is_kept_up_to_a_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path(), NOON).expect("a store");
    store.close().await;
    let statistics = Statistics::default();
    statistics.accepted(NOON);
    assert!(matches!(statistics.write(&store, true).await, Err(StoreError::Closed)));
    assert_eq!(statistics.boards().unwritten.len(), 2, "by minute and by hour");
    for minute in 1..=ROWS_MAX as u64 {
        statistics.accepted(NOON.plus(Duration::from_mins(minute)));
    }
    assert!(statistics.boards().unwritten.len() <= ROWS_MAX);
    assert!(statistics.boards().dropped > 0);
}
