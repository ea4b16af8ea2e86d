//! `cargo xtask links`: what the documents point to is there. Nothing is fetched.
//!
//! Checked in every Markdown file: relative links and their anchors; in code blocks marked
//! `console`, each `$` line's paths of this repository, `cargo xtask` tasks and `wattpipe`
//! subcommands; each block marked `yaml` that is a whole configuration (it has `service:`) is valid.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::process::{cargo, output, root, run};

/// Top-level directories whose paths in commands must exist.
const OURS: &[&str] = &[".ci/", "config/", "crates/", "deploy/", "docs/", "examples/", "xtask/"];

struct Checker {
    subcommands: BTreeSet<String>,
    tasks: BTreeSet<String>,
    problems: Vec<String>,
    links: usize,
    commands: usize,
    configurations: usize,
}

pub(crate) fn links() -> Result<()> {
    run(&mut cargo(&["build", "--quiet", "-p", "wattpipe-agent"]))?;
    let own = std::env::current_exe()?;
    let mut checker = Checker {
        subcommands: subcommands(&wattpipe())?,
        tasks: subcommands(&own)?,
        problems: Vec::new(),
        links: 0,
        commands: 0,
        configurations: 0,
    };
    let list = output(
        Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"])
            .current_dir(root()),
    )?;
    for name in list.lines() {
        let path = root().join(name);
        if path.exists() {
            checker.file(&path, name)?;
        }
    }
    let messages = checker.messages("docs/troubleshooting.md")?;
    println!(
        "{} links, {} commands, {} configurations, {messages} messages",
        checker.links, checker.commands, checker.configurations
    );
    ensure!(checker.problems.is_empty(), "\n{}", checker.problems.join("\n"));
    Ok(())
}

fn wattpipe() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), PathBuf::from)
        .join("debug/wattpipe")
}

/// The subcommands that `--help` of `program` lists.
fn subcommands(program: &Path) -> Result<BTreeSet<String>> {
    let help = output(Command::new(program).arg("--help"))?;
    let names = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned);
    Ok(names.collect())
}

impl Checker {
    fn file(&mut self, path: &Path, name: &str) -> Result<()> {
        let text = fs::read_to_string(path).with_context(|| name.to_owned())?;
        let mut block: Option<(String, String)> = None;
        for (at, line) in text.lines().enumerate() {
            let place = format!("{name}:{}", at + 1);
            let fence = line.trim_start().strip_prefix("```");
            match (&mut block, fence) {
                (None, Some(kind)) => block = Some((kind.trim().to_owned(), String::new())),
                (Some(_), Some(_)) => {
                    if let Some((kind, body)) = block.take() {
                        self.block(&kind, &body, &place)?;
                    }
                }
                (Some((kind, body)), None) => {
                    if let ("console", Some(command)) = (kind.as_str(), line.strip_prefix("$ ")) {
                        self.command(command, &place);
                    }
                    body.push_str(line);
                    body.push('\n');
                }
                (None, None) => {
                    self.links_of(line, path, &place);
                    self.tasks_of(line, &place);
                }
            }
        }
        if block.is_some() {
            self.problems.push(format!("{name}: a code block is not closed"));
        }
        Ok(())
    }

    /// Messages that the first column of a table quotes, `…` standing for what varies, are in the
    /// sources.
    fn messages(&mut self, name: &str) -> Result<usize> {
        let sources =
            output(Command::new("git").args(["ls-files", "crates/*.rs"]).current_dir(root()))?;
        let mut code = String::new();
        for file in sources.lines() {
            code += &fs::read_to_string(root().join(file)).unwrap_or_default();
        }
        // A string goes on over a line's end by `\\`, and escapes its quotes.
        let code: String = code
            .split("\\\n")
            .enumerate()
            .map(|(at, part)| if at == 0 { part } else { part.trim_start() })
            .collect();
        let code = code.replace("\\\"", "\"").replace("{{", "{").replace("}}", "}");
        let text = fs::read_to_string(root().join(name))?;
        let mut seen = 0;
        for (at, line) in text.lines().enumerate() {
            let Some(first) = line.strip_prefix("| `").and_then(|rest| rest.split(" | ").next())
            else {
                continue;
            };
            let message = first.split('`').next().unwrap_or_default();
            if !message.contains(' ') {
                continue;
            }
            seen += 1;
            for part in message.split('…').map(str::trim).filter(|part| part.len() > 2) {
                if !code.contains(part) {
                    self.problems.push(format!("{name}:{}: no message has `{part}`", at + 1));
                }
            }
        }
        Ok(seen)
    }

    fn links_of(&mut self, line: &str, file: &Path, place: &str) {
        for target in targets(line) {
            self.links += 1;
            if target.starts_with("https://") || target.starts_with("mailto:") {
                continue;
            }
            if target.starts_with("http://") {
                self.problems.push(format!("{place}: {target} is not https"));
                continue;
            }
            let (relative, anchor) = target.split_once('#').unwrap_or((target, ""));
            let to = match relative {
                "" => file.to_path_buf(),
                relative => file.parent().unwrap_or(Path::new("")).join(relative),
            };
            if !to.exists() {
                self.problems.push(format!("{place}: {target} does not exist"));
            } else if !anchor.is_empty() && !anchors(&to).contains(anchor) {
                self.problems.push(format!("{place}: {target} has no such heading"));
            }
        }
    }

    fn command(&mut self, command: &str, place: &str) {
        self.commands += 1;
        let words: Vec<&str> = command.split_whitespace().collect();
        for word in &words {
            let path = word.trim_matches(|c| "'\"`;".contains(c));
            if OURS.iter().any(|dir| path.starts_with(dir)) && !root().join(path).exists() {
                self.problems.push(format!("{place}: `{path}` does not exist"));
            }
        }
        self.tasks_of(command, place);
        for pair in words.windows(2) {
            let is_agent = pair[0] == "wattpipe" || pair[0].ends_with("/wattpipe");
            let names_one = pair[1].chars().all(|c| c.is_ascii_lowercase() || c == '-')
                && !pair[1].starts_with('-');
            if is_agent && names_one && !self.subcommands.contains(pair[1]) {
                self.problems.push(format!("{place}: there is no `wattpipe {}`", pair[1]));
            }
        }
    }

    /// `cargo xtask` tasks, in commands and in running text.
    fn tasks_of(&mut self, line: &str, place: &str) {
        for rest in line.split("cargo xtask ").skip(1) {
            let end =
                rest.find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '-');
            let task = &rest[..end.unwrap_or(rest.len())];
            if !task.is_empty() && !self.tasks.contains(task) {
                self.problems.push(format!("{place}: there is no `cargo xtask {task}`"));
            }
        }
    }

    fn block(&mut self, kind: &str, body: &str, place: &str) -> Result<()> {
        if kind != "yaml" || !body.lines().any(|line| line.starts_with("service:")) {
            return Ok(());
        }
        self.configurations += 1;
        let path = std::env::temp_dir().join(format!("wattpipe-doc-{}.yaml", std::process::id()));
        fs::write(&path, body)?;
        let done = Command::new(wattpipe())
            .arg("validate")
            .arg("--config")
            .arg(&path)
            .current_dir(root())
            .stdout(Stdio::null())
            .output()?;
        fs::remove_file(&path)?;
        if !done.status.success() {
            let why = String::from_utf8_lossy(&done.stderr).into_owned();
            self.problems.push(format!("{place}: the configuration above is not valid: {why}"));
        }
        Ok(())
    }
}

/// The targets of inline links in a line, code spans left out.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find("](") {
        let before = &rest[..at];
        let after = &rest[at + 2..];
        let Some(end) = after.find(')') else { break };
        if before.matches('`').count().is_multiple_of(2) {
            found.push(&after[..end]);
        }
        rest = &after[end..];
    }
    found
}

/// The anchors that headings of a Markdown file make, as GitHub forms them.
fn anchors(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .chars()
                .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_')
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: &[&str]) {
        assert_eq!(targets(line), expected, "{line}");
    }

    #[test]
    fn links_are_found_outside_of_code() {
        check("see [a](b.md) and [c](d.md#e).", &["b.md", "d.md#e"]);
        check("`[a](b.md)` is a link", &[]);
        check("`x` [a](b.md) `y`", &["b.md"]);
        check("[a] (b)", &[]);
    }
}
