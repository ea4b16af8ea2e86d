//! `replay`: a recorded stream, played back.
//!
//! ```yaml
//! sources:
//!   replay:
//!     path: rec.jsonl
//!     speed: max      # max, or a factor of real time: 1 is as recorded
//! ```
//!
//! Identity comes from the recording alone: this machine's processes are not asked. Records of
//! one window are held until its edge has been read, since a recording promises time order only
//! per CPU.

mod assemble;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tracing::{info, warn};
use wattpipe_pipeline::{
    Batch, BatchKind, BuildContext, Config, ConfigProblem, Source, SourceComponent, SourceContext,
    SourceError, recording::Record, registry::BuildError, units::Nanos,
};

use self::assemble::Assembler;

/// Configuration of `replay`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReplayConfig {
    /// The recording, as the `file` exporter writes it with `format: recording`.
    pub path: PathBuf,
    /// How fast: `max`, or a factor of real time (`1` plays as recorded).
    pub speed: Speed,
}

impl Default for ReplayConfig {
    fn default() -> Self {
        Self { path: PathBuf::new(), speed: Speed::Word(SpeedWord::Max) }
    }
}

/// How fast a recording is played.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Speed {
    /// By name.
    Word(SpeedWord),
    /// Times real time.
    Factor(f64),
}

/// Named speeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SpeedWord {
    /// As fast as the chain takes it.
    Max,
}

impl Config for ReplayConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        if self.path.as_os_str().is_empty() {
            problems.push(ConfigProblem::at("path", "missing key `path`: the recording to play"));
        }
        if let Speed::Factor(f) = self.speed
            && !(f.is_finite() && f > 0.0)
        {
            problems.push(ConfigProblem::at(
                "speed",
                format!("`{f}` is no speed: write `max` or a number above 0"),
            ));
        }
        problems
    }
}

/// The source.
#[derive(Debug)]
pub struct Replay(ReplayConfig);

impl SourceComponent for Replay {
    const NAME: &'static str = "replay";
    const DOC: &'static str = "Plays a recording of switches, meters and life-cycle records.";
    const EMITS: BatchKind = BatchKind::Switches;
    type Config = ReplayConfig;

    fn build(config: ReplayConfig, _: &BuildContext) -> Result<Self, BuildError> {
        Ok(Self(config))
    }
}

#[async_trait]
impl Source for Replay {
    async fn run(self: Box<Self>, context: SourceContext) -> Result<(), SourceError> {
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || play(&self.0, &context, &runtime))
            .await
            .map_err(|e| SourceError::failed("the replay's thread failed", e))?
    }
}

fn play(
    config: &ReplayConfig,
    context: &SourceContext,
    runtime: &Handle,
) -> Result<(), SourceError> {
    let file = File::open(&config.path)
        .map_err(|e| SourceError::failed(format!("cannot open {}", config.path.display()), e))?;
    let mut pace = Pace::new(config.speed);
    let mut assembler = Assembler::default();
    let mut send = |batches: Vec<wattpipe_pipeline::batch::SwitchBatch>| {
        for batch in batches {
            if let Some(edge) = batch.edge
                && !pace.wait_for(edge.ts, context, runtime)
            {
                return false;
            }
            if context.shutdown.is_triggered()
                || context.out.blocking_send(Batch::Switches(batch.into())).is_err()
            {
                return false;
            }
        }
        true
    };
    let mut lines = Lines::new(BufReader::with_capacity(1 << 18, file), &config.path);
    while let Some(ready) = lines.next_with(|record| assembler.take(record))? {
        if assembler.adrift {
            return Err(lines.wrong(
                "a `window` before any `topology`, which tells the CPUs and when they were booted",
            ));
        }
        if !send(ready) {
            return Ok(());
        }
    }
    if assembler.late > 0 {
        warn!(
            records = assembler.late,
            "records go back in time: those of a CPU count as of the moment of the one before, window edges not at all"
        );
    }
    let (rest, left) = assembler.finish();
    send(rest);
    if left > 0 {
        info!(
            records = left,
            "the recording goes on beyond its last window edge; what is there belongs to no window"
        );
    }
    Ok(())
}

/// A line longer than this is no record.
const MAX_LINE: u64 = 1 << 20;

/// Reads records line by line.
struct Lines<'a, R> {
    input: R,
    path: &'a Path,
    line: Vec<u8>,
    number: u64,
}

impl<'a, R: BufRead> Lines<'a, R> {
    fn new(input: R, path: &'a Path) -> Self {
        Self { input, path, line: Vec::new(), number: 0 }
    }

    /// Gives the next record to `take`. `None` at the end.
    fn next_with<T: Default>(
        &mut self,
        take: impl FnOnce(Record<'_>) -> T,
    ) -> Result<Option<T>, SourceError> {
        self.line.clear();
        self.number += 1;
        let read =
            io::Read::take(&mut self.input, MAX_LINE).read_until(b'\n', &mut self.line).map_err(
                |e| SourceError::failed(format!("{}:{}", self.path.display(), self.number), e),
            )?;
        if read == 0 {
            return Ok(None);
        }
        let complete = self.line.ends_with(b"\n");
        let text = self
            .line
            .strip_prefix(b"\xef\xbb\xbf")
            .filter(|_| self.number == 1)
            .unwrap_or(&self.line);
        let text = text.trim_ascii();
        if text.is_empty() {
            return Ok(Some(T::default()));
        }
        match parse(text) {
            Ok(record) => Ok(Some(take(record))),
            Err(e) if !complete && (read as u64) < MAX_LINE => {
                warn!(
                    "{}:{}: the last line is cut off ({e}); it is left out",
                    self.path.display(),
                    self.number
                );
                Ok(None)
            }
            Err(e) => Err(self.wrong(&format!("not a record of a recording: {e}"))),
        }
    }

    /// What is wrong with the line that was read last.
    fn wrong(&self, what: &str) -> SourceError {
        SourceError::BadInput(format!("{}:{}: {what}", self.path.display(), self.number))
    }
}

/// The fields of a `switch` line, without the detour that a tagged enum takes: nearly all lines
/// of a recording are these.
#[derive(Deserialize)]
struct SwitchLine {
    ts: Nanos,
    cpu: wattpipe_pipeline::units::Cpu,
    prev: wattpipe_pipeline::units::Tgid,
    next: wattpipe_pipeline::units::Tgid,
    #[serde(default)]
    cycles: Option<u64>,
}

fn parse(line: &[u8]) -> Result<Record<'_>, serde_json::Error> {
    if line.starts_with(br#"{"type":"switch","#) {
        let s: SwitchLine = serde_json::from_slice(line)?;
        return Ok(Record::Switch {
            ts: s.ts,
            cpu: s.cpu,
            prev: s.prev,
            next: s.next,
            cycles: s.cycles,
        });
    }
    serde_json::from_slice(line)
}

/// Keeps a replay to real time.
struct Pace {
    factor: Option<f64>,
    origin: Option<(Instant, Nanos)>,
}

impl Pace {
    fn new(speed: Speed) -> Self {
        let factor = match speed {
            Speed::Word(SpeedWord::Max) => None,
            Speed::Factor(f) => Some(f),
        };
        Self { factor, origin: None }
    }

    /// Waits until `ts` is due. `false`: shutdown came first.
    fn wait_for(&mut self, ts: Nanos, context: &SourceContext, runtime: &Handle) -> bool {
        let Some(factor) = self.factor else { return true };
        let (start, first) = *self.origin.get_or_insert((Instant::now(), ts));
        let seconds = (ts.since(first).as_secs_f64() / factor).min(1e9);
        let due = start + Duration::from_secs_f64(seconds);
        let mut shutdown = context.shutdown.clone();
        runtime
            .block_on(async { tokio::time::timeout_at(due.into(), shutdown.wait()).await.is_err() })
    }
}
