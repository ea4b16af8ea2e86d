//! What is wrong with a configuration, where, and what would be right: one form for every error,
//! `file:line:column: error: key::path: what`, the line itself, what is allowed.

use std::fmt::Write as _;

use super::source::{SourceSet, Span};

/// Longer lists of what is allowed are not printed.
const MAX_ALLOWED: usize = 30;

/// Whether a configuration with this diagnostic can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It cannot.
    Error,
    /// It can, but somebody should look.
    Warning,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// Where, if it is in a text at all.
    pub span: Option<Span>,
    /// Key path from the root; empty where the text has no keys yet.
    pub path: Vec<String>,
    /// What is wrong.
    pub message: String,
    /// What is allowed there.
    pub allowed: Vec<String>,
    /// The wrong name, where it is a name that may be a typo of an allowed one.
    pub wrong_name: Option<String>,
    /// A second place that matters (the first of two duplicate keys).
    pub related: Option<(Span, String)>,
}

impl Diagnostic {
    /// An error at `span`.
    pub fn error(
        span: impl Into<Option<Span>>,
        path: &[String],
        message: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Error,
            span: span.into(),
            path: path.to_vec(),
            message: message.into(),
            allowed: Vec::new(),
            wrong_name: None,
            related: None,
        }
    }

    /// A warning at `span`.
    pub fn warning(
        span: impl Into<Option<Span>>,
        path: &[String],
        message: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Warning, ..Self::error(span, path, message) }
    }

    /// Says what is allowed.
    pub fn allow(mut self, allowed: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.allowed = allowed.into_iter().map(Into::into).collect();
        self
    }

    /// Says which name is wrong, so that the nearest allowed one is proposed.
    pub fn for_name(mut self, name: &str) -> Self {
        self.wrong_name = Some(name.to_owned());
        self
    }

    /// Points to a second place.
    pub fn related(mut self, span: Span, what: impl Into<String>) -> Self {
        self.related = Some((span, what.into()));
        self
    }

    /// The allowed name that a typo most likely meant.
    pub fn nearest(&self) -> Option<&str> {
        nearest(self.wrong_name.as_deref()?, self.allowed.iter().map(String::as_str))
    }

    /// The whole text, ending in a newline.
    pub fn render(&self, sources: &SourceSet) -> String {
        let mut out = String::new();
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        match self.span {
            Some(span) => {
                let _ = write!(out, "{}: {severity}: ", sources.place(span));
            }
            None => {
                let _ = write!(out, "{severity}: ");
            }
        }
        if !self.path.is_empty() {
            let _ = write!(out, "{}: ", self.path.join("::"));
        }
        out.push_str(&self.message);
        if let Some(nearest) = self.nearest() {
            let _ = write!(out, "; did you mean `{nearest}`?");
        }
        out.push('\n');
        if let Some(span) = self.span {
            sources.snippet(span, &mut out);
        }
        if let Some((span, what)) = &self.related {
            let _ = writeln!(out, "  {what}: {}", sources.place(*span));
        }
        // Nobody reads a list of forty names; the nearest one is above.
        if (1..=MAX_ALLOWED).contains(&self.allowed.len()) {
            let _ = writeln!(out, "  allowed: {}", self.allowed.join(", "));
        }
        out
    }
}

/// The candidate that is so near to `name` that it was probably meant.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let folded = name.to_lowercase().replace('-', "_");
    candidates
        .map(|c| (strsim::damerau_levenshtein(&folded, &c.to_lowercase().replace('-', "_")), c))
        .filter(|(distance, c)| *distance <= 1 + name.len().max(c.len()) / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, c)| c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_near() {
        let names = ["window", "ring_buffer_size", "attach"];
        for (typo, expected) in [
            ("widnow", Some("window")),
            ("windows", Some("window")),
            ("ring-buffer-size", Some("ring_buffer_size")),
            ("ringbuffersize", Some("ring_buffer_size")),
            ("Attach", Some("attach")),
            ("zzz", None),
        ] {
            assert_eq!(nearest(typo, names.into_iter()), expected, "{typo}");
        }
    }
}
