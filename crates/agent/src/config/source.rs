//! The texts a configuration is made of, and places in them.

use std::{fmt::Write as _, path::Path};

/// A configuration file may not be larger: nobody writes one, and a device or a log given by
/// mistake must not fill the memory.
const MAX_BYTES: u64 = 1 << 20;
/// A line longer than this is cut in a snippet.
const MAX_SNIPPET: usize = 120;

/// A stretch of one line of one text. Lines and columns count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which text.
    pub source: u16,
    /// Line.
    pub line: u32,
    /// Column of the first character.
    pub column: u32,
    /// Characters on that line.
    pub len: u32,
}

/// One text with its name.
#[derive(Clone, Debug)]
struct Source {
    name: String,
    text: String,
}

/// All texts of one load, by number.
#[derive(Clone, Debug, Default)]
pub struct SourceSet(Vec<Source>);

impl SourceSet {
    /// Adds a text and gives its number.
    pub fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> u16 {
        self.0.push(Source { name: name.into(), text: text.into() });
        u16::try_from(self.0.len() - 1).unwrap_or(u16::MAX)
    }

    /// The text with this number.
    pub fn text(&self, source: u16) -> &str {
        self.0.get(usize::from(source)).map_or("", |s| &s.text)
    }

    /// `file:line:column`.
    pub fn place(&self, span: Span) -> String {
        let name = self.0.get(usize::from(span.source)).map_or("?", |s| s.name.as_str());
        format!("{name}:{}:{}", span.line, span.column)
    }

    /// The line of `span` with what it covers underlined, appended to `out`.
    pub fn snippet(&self, span: Span, out: &mut String) {
        let text = self.text(span.source);
        let Some(line) = text.lines().nth((span.line as usize).saturating_sub(1)) else { return };
        let line = line.trim_start_matches('\u{feff}');
        // A tab or control character would put the marks under the wrong place.
        let shown: String =
            line.chars().take(MAX_SNIPPET).map(|c| if c.is_control() { ' ' } else { c }).collect();
        if shown.trim().is_empty() {
            return;
        }
        let start = (span.column as usize).saturating_sub(1);
        let width = shown.chars().count();
        let number = span.line.to_string();
        let _ = writeln!(out, "  {number} | {}", shown.trim_end());
        if start < width.max(1) {
            let marks = (span.len as usize).clamp(1, width - start);
            let _ = writeln!(
                out,
                "  {:pad$} | {:start$}{}",
                "",
                "",
                "^".repeat(marks),
                pad = number.len()
            );
        }
    }
}

/// Reads a configuration file, or says why not in one line.
pub fn read_file(path: &Path) -> Result<String, String> {
    use std::io::Read as _;
    let shown = path.display();
    let file = std::fs::File::open(path)
        .map_err(|e| format!("cannot read the configuration file `{shown}`: {}", plain(&e)))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| format!("cannot read the configuration file `{shown}`: {}", plain(&e)))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("the configuration file `{shown}` is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        format!("{shown}:{line}: the configuration file is not UTF-8 text")
    })
}

/// The operating system's reason without Rust's number behind it.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}
