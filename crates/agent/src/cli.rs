//! The command line.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{Exit, config::Input};

/// Energy and CPU time per process, container and pod, from one probe on the scheduler.
#[derive(Clone, Debug, Parser)]
#[command(name = "wattpipe", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Where configuration comes from.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConfigArgs {
    /// Configuration file; later ones merge over earlier ones (maps merge, lists are replaced)
    #[arg(long = "config", short = 'c', value_name = "FILE")]
    files: Vec<PathBuf>,
    /// One setting on top of the files, such as sources.ebpf.window=5s; VALUE is YAML
    #[arg(long = "set", value_name = "A.B.C=VALUE")]
    sets: Vec<String>,
}

/// What to do; running the pipelines is the default.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the pipelines (the default)
    Run(ConfigArgs),
    /// Load, merge and build everything without starting it; prints `ok`
    Validate(ConfigArgs),
    /// Print the effective configuration, every default filled in, secrets redacted
    PrintConfig(ConfigArgs),
    /// List every compiled-in component
    Components {
        /// Form of the list
        #[arg(long, value_enum, default_value_t = ListFormat::Yaml)]
        format: ListFormat,
    },
    /// Print the JSON Schema of the configuration file
    Schema,
    /// Say what this host offers, what will be used, and what each missing thing costs
    Doctor {
        /// Form of the answer
        #[arg(long, value_enum, default_value_t = DoctorFormat::Text)]
        format: DoctorFormat,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Run a command and measure it and all its descendants
    Exec {
        /// Write the measurement to FILE as JSON, too; `-` is standard output
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// The command and its arguments
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "CMD"
        )]
        command: Vec<OsString>,
    },
}

/// Forms of `doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DoctorFormat {
    Text,
    Json,
}

/// Forms of `components`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    Yaml,
    Json,
}

impl Cli {
    /// What to load: options before the subcommand and after it count alike.
    pub(crate) fn input(&self) -> Input {
        let mut all = self.config.clone();
        if let Some(
            Command::Run(c)
            | Command::Validate(c)
            | Command::PrintConfig(c)
            | Command::Doctor { config: c, .. },
        ) = &self.command
        {
            all.files.extend(c.files.iter().cloned());
            all.sets.extend(c.sets.iter().cloned());
        }
        Input { files: all.files, sets: all.sets }
    }
}

/// Parses `args`, or prints what is wrong (or the help) and gives the exit status.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, Exit> {
    Cli::try_parse_from(args).map_err(|e| {
        // A closed terminal is no reason to fail differently.
        let _ = e.print();
        if e.use_stderr() { Exit::Usage } else { Exit::Done }
    })
}
