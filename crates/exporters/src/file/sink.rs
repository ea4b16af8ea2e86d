//! The file itself: opening, buffering, writing, recovering, rotating.
//!
//! Records arrive in chunks of whole lines, one per window. Whatever goes wrong, the file never
//! keeps part of a chunk that is still to be written: it is cut back to where the write began, and
//! the chunk stays in memory for the next attempt.

use std::{
    collections::{BTreeSet, VecDeque},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Instant, SystemTime},
};

use tracing::{info, warn};

use super::{
    config::{Compression, FileConfig},
    rotation, tail,
};
use crate::counters::Counters;

/// Level of zstd that a stream of small records is compressed with.
const ZSTD_LEVEL: i32 = 3;

/// Files that this process has begun: opened anew (a reload), they are gone on with, not emptied.
static BEGUN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// What could not be done with the file.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("cannot open `{path}`: {cause}; check `path` and its directory's permissions")]
    Open { path: PathBuf, cause: io::Error },
    #[error("cannot create the directory `{path}`: {cause}")]
    Directory { path: PathBuf, cause: io::Error },
}

struct Chunk {
    bytes: Vec<u8>,
    points: u64,
}

struct Opened {
    file: File,
    /// A regular file can be cut, rotated and lost; a pipe or device cannot.
    regular: bool,
    size: u64,
    since: Instant,
}

/// The file with what waits for it.
pub(super) struct Sink {
    config: FileConfig,
    id: String,
    counters: Counters,
    /// What each new file begins with.
    header: Vec<u8>,
    opened: Option<Opened>,
    pending: VecDeque<Chunk>,
    pending_bytes: usize,
    last_flush: Instant,
    failing: bool,
    dropped: u64,
}

impl Sink {
    pub(super) fn new(config: FileConfig, id: String, counters: Counters, header: Vec<u8>) -> Self {
        Self {
            config,
            id,
            counters,
            header,
            opened: None,
            pending: VecDeque::new(),
            pending_bytes: 0,
            last_flush: Instant::now(),
            failing: false,
            dropped: 0,
        }
    }

    /// Opens the file for the first time: empties it, or cuts what a killed writer left at its end.
    pub(super) fn open(&mut self) -> Result<(), FileError> {
        if self.config.create_directory
            && let Some(directory) = self.config.path.parent()
        {
            fs::create_dir_all(directory)
                .map_err(|cause| FileError::Directory { path: directory.to_owned(), cause })?;
        }
        let path = &self.config.path;
        let begun = !BEGUN
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        let keep = begun || self.config.append || self.config.rotation.is_some();
        let open = || -> io::Result<Opened> {
            let mut opened = open_file(path)?;
            if opened.regular {
                if !keep {
                    opened.file.set_len(0)?;
                } else {
                    cut_tail(&self.id, path, &opened.file, self.config.compression)?;
                }
                opened.size = opened.file.metadata()?.len();
            }
            Ok(opened)
        };
        let opened = open().map_err(|cause| FileError::Open { path: path.clone(), cause })?;
        self.opened = Some(opened);
        Ok(())
    }

    /// Takes whole lines. Where too much waits, the oldest go.
    pub(super) fn push(&mut self, bytes: Vec<u8>, points: u64) {
        if bytes.is_empty() {
            return;
        }
        self.pending_bytes += bytes.len();
        self.pending.push_back(Chunk { bytes, points });
        let limit = usize::try_from(self.config.max_buffer.bytes()).unwrap_or(usize::MAX);
        // A single window above the limit is still worth one attempt.
        while self.pending_bytes > limit && self.pending.len() > 1 {
            if !self.failing {
                // Not stuck, only full before its time: nothing has to go.
                self.flush();
                if !self.failing {
                    break;
                }
                continue;
            }
            if let Some(chunk) = self.pending.pop_front() {
                self.pending_bytes -= chunk.bytes.len();
                self.counters.send_failed.add(chunk.points);
                self.dropped += chunk.points;
            }
        }
    }

    /// Writes what waits, if the interval is over. Whether something waits then.
    pub(super) fn flush_if_due(&mut self) -> bool {
        // Half a tick early, so that a flush per window does not slip to every second window.
        let due = self.config.flush_interval.0.mul_f32(0.5);
        if !self.pending.is_empty() && self.last_flush.elapsed() >= due {
            self.flush();
        }
        !self.pending.is_empty()
    }

    /// Writes what waits. A failure is reported once, until writing works again.
    pub(super) fn flush(&mut self) {
        self.last_flush = Instant::now();
        match self.write_pending() {
            Ok(()) if self.failing => {
                self.failing = false;
                let dropped = std::mem::take(&mut self.dropped);
                info!(exporter = %self.id, path = %self.config.path.display(), dropped, "writing again");
            }
            Ok(()) => {}
            Err(e) => {
                if !std::mem::replace(&mut self.failing, true) {
                    warn!(exporter = %self.id, path = %self.config.path.display(), "cannot write: {e}; records wait in memory (up to `max_buffer`) and writing is tried again");
                }
            }
        }
    }

    /// Last flush; what still cannot be written is lost, and counted.
    pub(super) fn close(&mut self) {
        if !self.pending.is_empty() {
            self.flush();
        }
        let lost: u64 = self.pending.drain(..).map(|c| c.points).sum();
        self.pending_bytes = 0;
        if lost > 0 {
            self.counters.send_failed.add(lost);
            warn!(exporter = %self.id, path = %self.config.path.display(), lost, "records are lost: they could not be written before the end");
        }
        self.opened = None;
    }

    fn write_pending(&mut self) -> io::Result<()> {
        self.ensure_open()?;
        while let Some(first) = self.pending.front() {
            let (bytes, chunks) = match self.config.compression {
                Compression::None => (std::borrow::Cow::Borrowed(first.bytes.as_slice()), 1),
                // One frame for all: small frames compress badly.
                Compression::Zstd => {
                    let plain: Vec<&[u8]> =
                        self.pending.iter().map(|c| c.bytes.as_slice()).collect();
                    let frame = zstd::bulk::compress(&plain.concat(), ZSTD_LEVEL)?;
                    (std::borrow::Cow::Owned(frame), self.pending.len())
                }
            };
            let size = bytes.len() as u64;
            if let Some(opened) = &self.opened
                && rotation_due(&self.config, opened, size)
            {
                self.opened = None;
                let now = SystemTime::now();
                let backup = rotation::move_away(&self.config.path, now)?;
                info!(exporter = %self.id, backup = %backup.display(), "began a new file");
                let opened = open_file(&self.config.path)?;
                self.opened = Some(opened);
                if let Some(rotation) = &self.config.rotation
                    && let Err(e) = rotation::prune(&self.config.path, rotation, now)
                {
                    warn!(exporter = %self.id, "cannot remove old files: {e}");
                }
            }
            let Some(opened) = &mut self.opened else { return Ok(()) };
            if opened.size == 0 && !self.header.is_empty() {
                let header = match self.config.compression {
                    Compression::None => self.header.clone(),
                    Compression::Zstd => zstd::bulk::compress(&self.header, ZSTD_LEVEL)?,
                };
                write_or_cut(opened, &header)?;
            }
            write_or_cut(opened, &bytes)?;
            for chunk in self.pending.drain(..chunks) {
                self.pending_bytes -= chunk.bytes.len();
                self.counters.sent.add(chunk.points);
            }
        }
        Ok(())
    }

    /// Opens the file where it is not, or not the one at `path` any more.
    fn ensure_open(&mut self) -> io::Result<()> {
        if let Some(opened) = &mut self.opened
            && opened.regular
        {
            let here = opened.file.metadata()?;
            // Somebody may have emptied it (logrotate's `copytruncate`).
            opened.size = here.len();
            let same = match fs::metadata(&self.config.path) {
                Ok(there) => (there.dev(), there.ino()) == (here.dev(), here.ino()),
                Err(e) if e.kind() == io::ErrorKind::NotFound => false,
                Err(e) => return Err(e),
            };
            if !same {
                warn!(exporter = %self.id, path = %self.config.path.display(), "the file was moved or removed: going on in a new one");
                self.opened = None;
            }
        }
        if self.opened.is_none() {
            self.opened = Some(open_file(&self.config.path)?);
        }
        Ok(())
    }
}

fn open_file(path: &Path) -> io::Result<Opened> {
    let file = OpenOptions::new().read(true).append(true).create(true).open(path).or_else(|e| {
        // A pipe or device may be writable only. Where nothing is there, it was not that.
        if e.kind() == io::ErrorKind::PermissionDenied {
            OpenOptions::new().append(true).open(path).map_err(|_| e)
        } else {
            Err(e)
        }
    })?;
    let metadata = file.metadata()?;
    Ok(Opened { regular: metadata.is_file(), size: metadata.len(), file, since: Instant::now() })
}

fn cut_tail(id: &str, path: &Path, file: &File, compression: Compression) -> io::Result<()> {
    let whole = tail::whole_length(&mut file.try_clone()?, compression)?;
    let cut = file.metadata()?.len().saturating_sub(whole);
    if cut > 0 {
        file.set_len(whole)?;
        warn!(exporter = %id, path = %path.display(), bytes = cut, "the last record was incomplete (the writer was killed): cut off");
    }
    Ok(())
}

/// Writes all of `bytes`, or leaves the file as it was.
fn write_or_cut(opened: &mut Opened, bytes: &[u8]) -> io::Result<()> {
    let before = if opened.regular { opened.file.metadata()?.len() } else { 0 };
    match opened.file.write_all(bytes) {
        Ok(()) => {
            opened.size = before + bytes.len() as u64;
            Ok(())
        }
        Err(e) => {
            if opened.regular {
                opened.file.set_len(before)?;
            }
            Err(e)
        }
    }
}

fn rotation_due(config: &FileConfig, opened: &Opened, more: u64) -> bool {
    let Some(rotation) = &config.rotation else { return false };
    let full = opened.size + more > rotation.max_megabytes.saturating_mul(1 << 20);
    let old = rotation.max_age.is_some_and(|age| opened.since.elapsed() >= age.0);
    opened.regular && opened.size > 0 && (full || old)
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.close();
    }
}
