//! The agent's log on standard error.

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer, Registry, filter::Targets, layer::SubscriberExt, reload, util::SubscriberInitExt,
};
use wattpipe_exporters::stdout::screen::{LogWriter, styles};

use crate::config::model::{LogFormat, LogLevel, Logs};

/// Changes the level of a running log.
#[derive(Clone)]
pub(crate) struct LogHandle(reload::Handle<Targets, Registry>);

impl LogHandle {
    /// Logs from `level` on.
    pub(crate) fn set_level(&self, level: LogLevel) {
        // The subscriber lives as long as the process.
        let _ = self.0.reload(filter(level));
    }
}

/// Starts the log. A second start (tests) keeps the first.
pub(crate) fn init(logs: &Logs) -> LogHandle {
    let (level, handle) = reload::Layer::new(filter(logs.level));
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(|| LogWriter)
        // Where standard error is closed there is nowhere to complain to.
        .log_internal_errors(false)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal() && styles());
    let layer = match logs.format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    let _ = tracing_subscriber::registry().with(level).with(layer).try_init();
    LogHandle(handle)
}

/// Libraries that tell every step of theirs at `debug`: they say what goes wrong, no more.
const TALKATIVE: [&str; 8] =
    ["aya", "h2", "hyper", "mio", "opentelemetry", "rustls", "tonic", "tower"];

fn filter(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let libraries = TALKATIVE.map(|name| (name, level.min(LevelFilter::INFO)));
    Targets::new().with_default(level).with_targets(libraries)
}
