//! `stdout`: each window as a table for people or as JSON lines for programs.
//!
//! ```yaml
//! exporters:
//!   stdout:
//!     format: table   # table | json
//!     top: 20         # rows of the table; null shows all
//! ```
//!
//! On a terminal the table is redrawn in place (see [`screen`]); elsewhere windows follow one
//! another. A reader that goes away (`wattpipe | head`) ends the run quietly.

pub mod screen;
pub mod table;

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wattpipe_pipeline::{
    BuildContext, Config, ExportError, Exporter, ExporterComponent, Stability, async_trait,
    batch::{Batch, UsageBatch},
    registry::BuildError,
};

use crate::{counters::Counters, records};
use screen::Screen;

/// Columns of the table where the output is no terminal.
const PIPED_WIDTH: usize = 80;

/// A pipe takes writes of up to this many bytes whole or not at all (POSIX `PIPE_BUF` on Linux).
const PIPE_BUF: usize = 4096;

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A table of the largest workloads.
    #[default]
    Table,
    /// One JSON object a line.
    Json,
}

/// Configuration of `stdout`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StdoutConfig {
    /// `table` for people, `json` for one JSON object a line.
    pub format: Format,
    /// Workloads that the table lists, largest first; the rest is one row. `null` lists all.
    pub top: Option<u32>,
}

impl Default for StdoutConfig {
    fn default() -> Self {
        Self { format: Format::Table, top: Some(20) }
    }
}

impl Config for StdoutConfig {}

enum Output {
    Screen(Screen),
    Plain(Lines),
}

impl Output {
    fn plain(out: Box<dyn Write + Send>) -> Self {
        Self::Plain(Lines { out, torn: false })
    }
}

/// See the module's documentation.
pub struct StdoutExporter {
    config: StdoutConfig,
    counters: Counters,
    output: Output,
    buffer: Vec<u8>,
}

impl ExporterComponent for StdoutExporter {
    const NAME: &'static str = "stdout";
    const DOC: &'static str = "Writes each window to standard output, as a table or as JSON lines.";
    const STABILITY: Stability = Stability::Beta;
    type Config = StdoutConfig;

    fn build(config: StdoutConfig, context: &BuildContext) -> Result<Self, BuildError> {
        Ok(Self::with_output(config, context, Box::new(io::sink())))
    }
}

impl StdoutExporter {
    /// One that writes to `output` instead of standard output.
    pub fn with_output(
        config: StdoutConfig,
        context: &BuildContext,
        output: Box<dyn Write + Send>,
    ) -> Self {
        Self {
            config,
            counters: Counters::new(context),
            output: Output::plain(output),
            buffer: Vec::new(),
        }
    }

    fn render(&mut self, batch: &UsageBatch) -> Result<(), ExportError> {
        self.buffer.clear();
        match self.config.format {
            Format::Json => {
                records::write_lines(batch, &mut self.buffer).map_err(|e| ExportError::Failed {
                    what: format!("a record could not be written as JSON: {e}"),
                    dropped: batch.rows.len() as u64,
                })?;
            }
            Format::Table => {
                let layout = match &self.output {
                    Output::Screen(screen) => screen.layout(self.config.top),
                    Output::Plain(_) => {
                        table::Layout { width: PIPED_WIDTH, top: self.config.top, styled: false }
                    }
                };
                self.buffer.extend_from_slice(table::render(batch, layout).as_bytes());
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Exporter for StdoutExporter {
    async fn start(&mut self) -> Result<(), ExportError> {
        // A descriptor of our own: std's handle would buffer lines behind a lock that a panic
        // message could hold.
        let stdout = io::stdout();
        let file = stdout.as_fd().try_clone_to_owned().map(File::from).map_err(|e| {
            ExportError::Fatal(format!("standard output is not open: {e}; redirect it somewhere"))
        })?;
        self.output = if self.config.format == Format::Table && stdout.is_terminal() {
            Output::Screen(Screen::open(file))
        } else {
            Output::plain(Box::new(file))
        };
        Ok(())
    }

    async fn export(&mut self, batch: Batch) -> Result<(), ExportError> {
        let Batch::Usage(batch) = batch else { return Ok(()) };
        self.render(&batch)?;
        let points = batch.rows.len() as u64;
        let written = match &mut self.output {
            Output::Screen(screen) => screen.draw(&self.buffer),
            Output::Plain(out) => {
                if self.config.format == Format::Table {
                    self.buffer.push(b'\n');
                }
                out.end_torn().and_then(|()| write_whole_lines(out, &self.buffer))
            }
        };
        match written {
            Ok(()) => {
                self.counters.sent.add(points);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(ExportError::Closed),
            Err(e) => Err(ExportError::Failed {
                what: format!("cannot write to standard output: {e}"),
                dropped: points,
            }),
        }
    }

    async fn shutdown(&mut self, _: Duration) -> Result<(), ExportError> {
        if let Output::Screen(screen) = &mut self.output {
            screen.close();
        }
        Ok(())
    }
}

/// An output that knows whether its last line has ended: a full disk takes half of one, and what
/// comes once there is room again must not go on in the middle of it.
struct Lines {
    out: Box<dyn Write + Send>,
    torn: bool,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        if let Some(last) = bytes[..n].last() {
            self.torn = *last != b'\n';
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Lines {
    fn end_torn(&mut self) -> io::Result<()> {
        if self.torn { write_patiently(self, b"\n") } else { Ok(()) }
    }
}

/// Writes `bytes` in runs of whole lines that a pipe takes whole or not at all, so that the end of
/// the process while the reader is slow leaves no half line (but for lines above [`PIPE_BUF`]).
fn write_whole_lines(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let window = &bytes[..bytes.len().min(PIPE_BUF)];
        let run = match window.iter().rposition(|b| *b == b'\n') {
            Some(end) => end + 1,
            None => bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |end| end + 1),
        };
        write_patiently(out, &bytes[..run])?;
        bytes = &bytes[run..];
    }
    out.flush()
}

/// `write_all` that also waits for a terminal or pipe somebody else has made non-blocking.
pub(crate) fn write_patiently(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::testing::Usage;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().push(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn json_goes_out_in_whole_lines() {
        let out = Shared::default();
        let context = BuildContext { id: "stdout".into(), ..BuildContext::default() };
        let config = StdoutConfig { format: Format::Json, ..StdoutConfig::default() };
        let mut exporter = StdoutExporter::with_output(config, &context, Box::new(out.clone()));
        let mut usage = Usage::window(0, 1_000_000_000);
        for pid in 1..=100 {
            usage = usage.process(pid, "a", 0, 1000);
        }
        exporter.export(usage.batch()).await.unwrap();
        let writes = out.0.lock().unwrap();
        assert!(writes.len() > 1);
        assert!(writes.iter().all(|w| w.len() <= PIPE_BUF && w.ends_with(b"\n")));
        assert_eq!(writes.concat().iter().filter(|b| **b == b'\n').count(), 101);
        assert_eq!(exporter.counters.sent.get(), 100);
    }

    /// Takes so many bytes, then nothing until there is room again.
    #[derive(Clone)]
    struct Disk(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.lock().unwrap();
            let n = bytes.len().min(disk.0);
            if n == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.0 -= n;
            disk.1.extend(&bytes[..n]);
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_full_disk_tears_one_line_and_no_other() {
        for room in 0..400 {
            let disk = Disk(Arc::new(Mutex::new((room, Vec::new()))));
            let config = StdoutConfig { format: Format::Json, ..StdoutConfig::default() };
            let context = BuildContext::default();
            let mut exporter =
                StdoutExporter::with_output(config, &context, Box::new(disk.clone()));
            let window = || Usage::window(0, 1).process(7, "a", 0, 1).batch();
            for _ in 0..2 {
                let full = exporter.export(window()).await;
                assert!(matches!(full, Err(ExportError::Failed { dropped: 1, .. })), "{full:?}");
            }
            disk.0.lock().unwrap().0 = usize::MAX;
            exporter.export(window()).await.unwrap();
            let text = String::from_utf8(disk.0.lock().unwrap().1.clone()).unwrap();
            let bad = |l: &&str| serde_json::from_str::<serde_json::Value>(l).is_err();
            assert!(text.lines().filter(bad).count() <= 1, "{text}");
            assert!(!text.lines().rev().take(2).any(|l| bad(&l)), "{text}");
        }
    }

    #[tokio::test]
    async fn a_closed_reader_ends_the_run() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let context = BuildContext::default();
        let mut exporter =
            StdoutExporter::with_output(StdoutConfig::default(), &context, Box::new(writer));
        let result = exporter.export(Usage::window(0, 1).batch()).await;
        assert!(matches!(result, Err(ExportError::Closed)), "{result:?}");
    }

    #[test]
    fn lines_longer_than_a_pipe_takes_still_go_out_whole() {
        let out = Shared::default();
        let long = [vec![b'x'; 10_000], b"\nshort\n".to_vec()].concat();
        write_whole_lines(&mut out.clone(), &long).unwrap();
        assert_eq!(out.0.lock().unwrap().concat(), long);
        assert_eq!(out.0.lock().unwrap().len(), 2);
    }
}
