//! The queue on disk: one redb file per exporter in `sending_queue::storage`.
//!
//! A request is written and synced before it counts as queued, so it survives kill -9 and a power
//! cut. Its removal after delivery is not synced by itself but with the next request: what was
//! delivered just before a kill may be sent once more. So delivery is at least once. The file does
//! not shrink while in use; its free pages are used again, and an opening start compacts it.
//!
//! After an error (a full disk) redb takes nothing more until the file is opened again: the next
//! use does that.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition,
};
use tokio::time::sleep;
use tracing::error;

use super::{QueueError, Request, store::Ticket};

/// Sequence number to (points, window, bytes): small, so that a start can read it all.
const META: TableDefinition<'_, u64, (u64, u64, u64)> = TableDefinition::new("meta");
/// Sequence number to encoded request.
const BODY: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("body");
/// How long a file may still be in use by the exporter before.
const HANDOVER: Duration = Duration::from_secs(5);
/// No write is tried for so long after one that failed: opening the file reads all of it.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Pages kept in memory.
const CACHE_BYTES: usize = 4 << 20;

/// The file.
pub(super) struct DiskQueue {
    path: PathBuf,
    open: Mutex<Open>,
}

struct Open {
    /// `None` after an error.
    db: Option<Database>,
    write_failed: Option<Instant>,
}

impl DiskQueue {
    /// Opens or makes the file of exporter `id`, and tells what waits in it, oldest first.
    pub(super) async fn open(
        directory: &Path,
        id: &str,
    ) -> Result<(Self, Vec<Ticket>), QueueError> {
        let path = directory.join(format!("{}.redb", id.replace('/', "_")));
        let fail = |what: String| QueueError::Storage { path: path.clone(), what };
        fs::create_dir_all(directory)
            .map_err(|e| fail(format!("cannot create the directory: {e}")))?;
        match Self::open_patiently(&path).await {
            Ok(opened) => Ok(opened),
            Err(OpenError::InUse) => {
                Err(fail("another process uses it; give each agent a directory of its own".into()))
            }
            Err(OpenError::Io(e)) => Err(fail(e)),
            Err(OpenError::Broken(e)) => {
                // Data for later is worth less than data from now on.
                let aside = set_aside(&path).map_err(|io| fail(format!("{e}; {io}")))?;
                error!(exporter = %id, "the stored queue cannot be read ({e}): set aside as `{}`, beginning a new one", aside.display());
                Self::open_file(&path).map_err(|e| match e {
                    OpenError::InUse => fail("another process uses it".into()),
                    OpenError::Io(e) | OpenError::Broken(e) => fail(e),
                })
            }
        }
    }

    /// After a reload the last reads and writes of the exporter before may still be under way. Waiting
    /// must not take the thread from them.
    async fn open_patiently(path: &Path) -> Result<(Self, Vec<Ticket>), OpenError> {
        let until = Instant::now() + HANDOVER;
        loop {
            match Self::open_file(path) {
                Err(OpenError::InUse) if Instant::now() < until => sleep(HANDOVER / 100).await,
                other => return other,
            }
        }
    }

    fn open_file(path: &Path) -> Result<(Self, Vec<Ticket>), OpenError> {
        let mut db = Self::create(path)?;
        // Compaction is a courtesy: without it the file is merely larger.
        let _ = db.compact();
        let tickets = Self::tickets(&db).map_err(|e| OpenError::Broken(e.to_string()))?;
        let open = Mutex::new(Open { db: Some(db), write_failed: None });
        Ok((Self { path: path.to_owned(), open }, tickets))
    }

    fn create(path: &Path) -> Result<Database, DatabaseError> {
        Database::builder().set_cache_size(CACHE_BYTES).create(path)
    }

    /// Uses the file, opening it where an error has closed it.
    fn with<T>(
        &self,
        writes: bool,
        run: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, String> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if writes && open.write_failed.is_some_and(|at| at.elapsed() < AFTER_FAILURE) {
            return Err(format!("it failed less than {AFTER_FAILURE:?} ago"));
        }
        let db = match open.db.take() {
            Some(db) => Ok(db),
            None => Self::create(&self.path).map_err(redb::Error::from),
        };
        let result = db.and_then(|db| {
            let result = run(&db)?;
            open.db = Some(db);
            Ok(result)
        });
        if writes {
            open.write_failed = result.is_err().then(Instant::now);
        }
        result.map_err(|e| e.to_string())
    }

    fn tickets(db: &Database) -> Result<Vec<Ticket>, redb::Error> {
        let write = db.begin_write()?;
        let mut tickets = Vec::new();
        {
            // Opening them for writing makes them where they are not.
            let meta = write.open_table(META)?;
            write.open_table(BODY)?;
            for entry in meta.iter()? {
                let (seq, value) = entry?;
                let (points, window, bytes) = value.value();
                tickets.push(Ticket { seq: seq.value(), points, bytes, window });
            }
        }
        write.commit()?;
        Ok(tickets)
    }

    /// Stores a request and forgets others, in one step.
    pub(super) fn insert(
        &self,
        ticket: &Ticket,
        request: &Request,
        victims: &[u64],
    ) -> Result<(), String> {
        self.with(true, |db| {
            let mut write = db.begin_write()?;
            write.set_durability(Durability::Immediate)?;
            {
                let mut meta = write.open_table(META)?;
                let mut body = write.open_table(BODY)?;
                for seq in victims {
                    meta.remove(seq)?;
                    body.remove(seq)?;
                }
                meta.insert(ticket.seq, (ticket.points, ticket.window, ticket.bytes))?;
                body.insert(ticket.seq, &request.body[..])?;
            }
            Ok(write.commit()?)
        })
    }

    /// The body of a request.
    pub(super) fn read(&self, seq: u64) -> Result<Bytes, String> {
        let body = self.with(false, |db| {
            let table = db.begin_read()?.open_table(BODY)?;
            Ok(table.get(seq)?.map(|body| Bytes::copy_from_slice(body.value())))
        })?;
        body.ok_or_else(|| format!("request {seq} is missing"))
    }

    /// Forgets delivered requests.
    pub(super) fn remove(&self, seqs: &[u64]) -> Result<(), String> {
        self.with(false, |db| {
            let mut write = db.begin_write()?;
            write.set_durability(Durability::None)?;
            {
                let mut meta = write.open_table(META)?;
                let mut body = write.open_table(BODY)?;
                for seq in seqs {
                    meta.remove(seq)?;
                    body.remove(seq)?;
                }
            }
            Ok(write.commit()?)
        })
    }
}

enum OpenError {
    InUse,
    /// The disk's fault, not the file's: it is left as it is.
    Io(String),
    Broken(String),
}

impl From<DatabaseError> for OpenError {
    fn from(e: DatabaseError) -> Self {
        match e {
            DatabaseError::DatabaseAlreadyOpen => Self::InUse,
            DatabaseError::Storage(StorageError::Io(e))
                if !matches!(
                    e.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
                ) =>
            {
                Self::Io(e.to_string())
            }
            other => Self::Broken(other.to_string()),
        }
    }
}

fn set_aside(path: &Path) -> std::io::Result<PathBuf> {
    let aside = path.with_extension("broken.redb");
    fs::rename(path, &aside)?;
    Ok(aside)
}
