//! One function per subcommand.

use std::io::{self, Write};

use wattpipe_pipeline::{Registry, registry::Entry};

use crate::{
    Exit, assemble,
    cli::{Cli, Command, ListFormat},
    config::{self, Input, Loaded, Report},
    docs, doctor, exec,
    extension::EXTENSIONS,
    run,
};

/// Does what the command line asks for.
pub(crate) fn dispatch(cli: Cli, registry: &Registry) -> Exit {
    let input = cli.input();
    match cli.command {
        None | Some(Command::Run(_)) => run::run(&input, registry),
        Some(Command::Validate(_)) => validate(&input, registry),
        Some(Command::PrintConfig(_)) => print_config(&input, registry),
        Some(Command::Components { format }) => components(format, registry),
        Some(Command::Schema) => json(&docs::schema(registry)),
        Some(Command::Doctor { format, .. }) => doctor::doctor(format, &input, registry),
        Some(Command::Exec { json, command }) => exec::exec(&command, json.as_deref(), registry),
    }
}

/// Loads the configuration, or tells everything that is wrong with it.
pub(crate) fn load(input: &Input, registry: &Registry) -> Result<Loaded, Exit> {
    let (loaded, warnings) = load_quietly(input, registry)?;
    tell(&Report { warnings, ..Report::default() });
    Ok(loaded)
}

/// The same, but gives the warnings back.
pub(crate) fn load_quietly(
    input: &Input,
    registry: &Registry,
) -> Result<(Loaded, Vec<String>), Exit> {
    let (loaded, report) = config::load(input, registry, &|name| std::env::var(name).ok());
    match loaded {
        Some(loaded) => Ok((loaded, report.warnings)),
        None => {
            tell(&report);
            Err(Exit::Usage)
        }
    }
}

/// Prints what a load has found.
pub(crate) fn tell(report: &Report) {
    let mut err = io::stderr().lock();
    for text in report.warnings.iter().chain(&report.errors) {
        let _ = writeln!(err, "{}", text.trim_end());
    }
    match report.errors.len() {
        0 => {}
        1 => drop(writeln!(err, "1 error; nothing was started")),
        n => drop(writeln!(err, "{n} errors; nothing was started")),
    }
}

fn validate(input: &Input, registry: &Registry) -> Exit {
    let loaded = match load(input, registry) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    let failed = assemble::build_all(&assemble::graph(&loaded, &Default::default()));
    if failed.is_empty() {
        return print("ok\n");
    }
    for reason in failed {
        let _ = writeln!(io::stderr(), "error: {reason}");
    }
    Exit::Usage
}

fn print_config(input: &Input, registry: &Registry) -> Exit {
    match load(input, registry) {
        Ok(loaded) => yaml(&loaded.effective()),
        Err(exit) => exit,
    }
}

fn components(format: ListFormat, registry: &Registry) -> Exit {
    fn rows<T: ?Sized>(entries: &[Entry<T>]) -> Vec<serde_json::Value> {
        entries
            .iter()
            .map(|e| {
                let mut row = serde_json::json!({
                    "name": e.name,
                    "description": e.doc,
                    "stability": e.stability,
                });
                if !e.aliases.is_empty() {
                    row["aliases"] = serde_json::json!(e.aliases);
                }
                if !e.takes.is_empty() {
                    row["takes"] = serde_json::json!(e.takes);
                }
                if let Some(emits) = e.emits {
                    row["emits"] = serde_json::json!(emits);
                }
                row
            })
            .collect()
    }
    let extensions: Vec<_> = EXTENSIONS
        .iter()
        .map(|e| {
            serde_json::json!({
                "name": e.name,
                "description": e.doc,
                "stability": e.stability,
            })
        })
        .collect();
    let list = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "sources": rows(&registry.sources),
        "processors": rows(&registry.processors),
        "exporters": rows(&registry.exporters),
        "extensions": extensions,
    });
    match format {
        ListFormat::Yaml => yaml(&list),
        ListFormat::Json => json(&list),
    }
}

fn json(value: &serde_json::Value) -> Exit {
    match serde_json::to_string_pretty(value) {
        Ok(text) => print(&format!("{text}\n")),
        Err(e) => fail(&e.to_string()),
    }
}

fn yaml(value: &serde_json::Value) -> Exit {
    match serde_yaml::to_string(value) {
        Ok(text) => print(&text),
        Err(e) => fail(&e.to_string()),
    }
}

/// Prints to standard output; a closed one is a quiet end.
pub(crate) fn print(text: &str) -> Exit {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Exit::Done,
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
        Err(e) => fail(&format!("cannot write to standard output: {e}")),
    }
}

/// Says why it failed.
pub(crate) fn fail(reason: &str) -> Exit {
    let _ = writeln!(io::stderr(), "error: {reason}");
    Exit::Failed
}
