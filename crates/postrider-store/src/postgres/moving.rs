//! Takes in all that was moved from elsewhere, as one transaction.

use super::{
    DatabaseUrl, Db, Error, PostgresOptions, Result, describe, execute, migrate, one, pieces, recover, row, rows,
    schema, visit,
};
use crate::moving::{Cell, MoveError, Plan, Room, TABLES, Table};
use bytes::BytesMut;
use postrider_engine::Timestamp;
use std::{pin::pin, time::Duration};
use tokio_postgres::{
    binary_copy::BinaryCopyInWriter,
    types::{IsNull, ToSql, Type},
};

pub(crate) struct Target {
    /// In a transaction, which is undone when this is dropped before its end.
    db: Db,
    place: String,
    span: Duration,
}

impl Target {
    pub async fn open(url: &DatabaseUrl, options: &PostgresOptions) -> Result<Self, MoveError> {
        migrate(url, options).await?;
        let db = visit::connect(url, options).await?;
        Ok(Self { db, place: url.to_string(), span: options.piece_span })
    }

    /// Begins, makes sure that there is nothing and nobody, and makes partitions for what is to come.
    pub async fn make_room(&self, plan: &Plan) -> Result<Room, MoveError> {
        // Who starts a node waits for the first lock, and who has begun to join, for the second.
        let begin = format!(
            "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0;
             SET LOCAL enable_seqscan = on; SELECT pg_advisory_xact_lock({}); LOCK TABLE node IN SHARE ROW EXCLUSIVE MODE",
            schema::MIGRATION_LOCK
        );
        self.db.batch_execute(&begin).await.map_err(failed)?;
        // Behind the locks, where a commit that was still under way is over.
        let ticket = "SELECT 1 FROM note WHERE name = $1 AND value = $2";
        let number = plan.ticket.number.to_be_bytes();
        if row(&self.db, ticket, &[&TICKET, &&number[..]]).await.map_err(failed)?.is_some() {
            return Ok(Room::TakenByThis);
        }
        let alive = "SELECT 1 FROM node JOIN lease ON lease.node = node.id AND until > clock_timestamp() LIMIT 1";
        if row(&self.db, alive, &[]).await.map_err(failed)?.is_some() {
            return Err(MoveError::InUse { place: self.place.clone() });
        }
        for table in TABLES.iter().filter(|table| table.name != NOTES) {
            let any = format!("SELECT 1 FROM {} LIMIT 1", table.name);
            if row(&self.db, &any, &[]).await.map_err(failed)?.is_some() {
                return Err(MoveError::NotEmpty { place: self.place.clone(), table: table.name });
            }
        }
        self.clear(plan).await.map_err(failed)?;
        Ok(Room::Made)
    }

    async fn clear(&self, plan: &Plan) -> Result<()> {
        // What a node left that did not end well. If it should come back, it is refused.
        for node in rows(&self.db, "SELECT id FROM node", &[]).await? {
            recover::bury_node(&self.db, node.get(0), Timestamp::default()).await?;
        }
        // Of the tables that a first start has made ready, without anything in them.
        for piece in pieces::list(&self.db).await? {
            if !pieces::discard(&self.db, piece).await? {
                return Err(Error::TooSlow);
            }
        }
        for key in &plan.spans {
            pieces::ensure(&self.db, *key, self.span).await?;
        }
        execute(&self.db, "DELETE FROM note WHERE name <> $1", &[&schema::VERSION_NOTE]).await?;
        execute(
            &self.db,
            "UPDATE cluster SET floor = greatest(floor, $1), minted = greatest(minted, $1)",
            &[&plan.minted],
        )
        .await?;
        let repeating = TABLES.iter().filter(|table| table.repeats);
        for table in repeating {
            self.db
                .batch_execute(&format!("CREATE TEMP TABLE {} (LIKE {}) ON COMMIT DROP", inbox(table), table.name))
                .await?;
        }
        Ok(())
    }

    pub async fn write(&self, table: &Table, batch: &[Vec<Cell>]) -> Result<(), MoveError> {
        copy(&self.db, table, batch).await.map_err(failed)
    }

    /// Compares what is there with what was planned.
    pub async fn compare(&self, plan: &Plan) -> Result<Vec<(&'static str, u64)>, MoveError> {
        let mut moved = Vec::new();
        for (table, (_, read)) in TABLES.iter().zip(&plan.rows) {
            let written = self.rows_in(&inbox(table)).await.map_err(failed)?;
            let expected = if table.name == NOTES { read + OWN_NOTES } else { *read };
            if written != expected {
                return Err(MoveError::Differs { table: table.name, read: *read, written });
            }
            if table.repeats {
                self.empty_inbox(table).await.map_err(failed)?;
            }
            moved.push((table.name, self.rows_in(table.name).await.map_err(failed)?));
        }
        // Without figures, the planner would take the new tables for empty.
        let names: Vec<&str> = TABLES.iter().map(|table| table.name).collect();
        self.db.batch_execute(&format!("ANALYZE {}", names.join(", "))).await.map_err(failed)?;
        let number = plan.ticket.number.to_be_bytes();
        let put = "INSERT INTO note VALUES ($1, $2)";
        execute(&self.db, put, &[&TICKET, &&number[..]]).await.map_err(failed)?;
        Ok(moved)
    }

    pub async fn commit(self) -> Result<(), MoveError> {
        self.db.batch_execute("COMMIT").await.map_err(|error| match Error::from(error) {
            error if error.is_lost() || error.code().is_none() => MoveError::Unconfirmed(describe(&error)),
            error => failed(error),
        })
    }

    async fn rows_in(&self, table: &str) -> Result<u64> {
        let found = one(&self.db, &format!("SELECT count(*) FROM {table}"), &[]).await?;
        Ok(super::count(found.get(0)))
    }

    async fn empty_inbox(&self, table: &Table) -> Result<()> {
        let sql = format!(
            "INSERT INTO {0} SELECT DISTINCT ON (key) * FROM {1} ORDER BY key, message DESC",
            table.name,
            inbox(table)
        );
        execute(&self.db, &sql, &[]).await.map(drop)
    }
}

/// Where rows are put first.
fn inbox(table: &Table) -> String {
    if table.repeats { format!("moved_{}", table.name) } else { table.name.to_owned() }
}

async fn copy(db: &Db, table: &Table, batch: &[Vec<Cell>]) -> Result<()> {
    let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
    let names = names.join(", ");
    let inbox = inbox(table);
    let shape = db.prepare_cached(&format!("SELECT {names} FROM {inbox}")).await?;
    let types: Vec<Type> = shape.columns().iter().map(|column| column.type_().clone()).collect();
    let sink = db.copy_in(&format!("COPY {inbox} ({names}) FROM STDIN BINARY")).await?;
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &types));
    for row in batch {
        writer.as_mut().write_raw(row).await?;
    }
    writer.finish().await?;
    Ok(())
}

fn failed(error: impl Into<Error>) -> MoveError {
    MoveError::Write(describe(&error.into()))
}

const NOTES: &str = "note";
/// Of the move that filled this database.
const TICKET: &str = "moved_in";
/// The version of the tables.
const OWN_NOTES: u64 = 1;

impl ToSql for Cell {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Small(value) => value.to_sql_checked(kind, out),
            Self::Whole(value) => value.to_sql_checked(kind, out),
            Self::Big(value) => value.to_sql_checked(kind, out),
            Self::Flag(value) => value.to_sql_checked(kind, out),
            Self::Text(value) => value.to_sql_checked(kind, out),
            Self::Bytes(value) => value.to_sql_checked(kind, out),
            Self::Keys(value) => value.to_sql_checked(kind, out),
        }
    }

    /// Each value looks for itself.
    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.to_sql(kind, out)
    }
}
