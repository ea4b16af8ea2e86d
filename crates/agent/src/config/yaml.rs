//! From text to [`Node`]s by granit-parser's events: anchors and merge keys are resolved here,
//! within a bound on nodes, so that no small text unfolds into a large tree.

use std::collections::HashMap;

use granit_parser::{Event, Marker, Parser, ScalarStyle};

use super::{
    diagnostic::Diagnostic,
    node::{Entry, Kind, Node, Parsed, scalar},
    source::Span,
};

/// Collections within collections.
const MAX_DEPTH: usize = 64;
/// Nodes of one text, copies made by aliases included.
const MAX_NODES: usize = 50_000;

/// Parses one text.
pub fn parse(source: u16, text: &str) -> Parsed {
    let options = granit_parser::options! {
        flow_nesting_limit: MAX_DEPTH + 1,
        block_nesting_limit: MAX_DEPTH + 1,
        emit_anchor_events: false,
    };
    // Windows editors put one in front; the parser takes it for a character of the first line.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder {
        source,
        text,
        events: Parser::new_from_str_with_options(text, options),
        anchors: HashMap::new(),
        nodes: 0,
        diagnostics: Vec::new(),
        path: Vec::new(),
    };
    let (root, broken) = match builder.stream() {
        Ok(root) => (root, false),
        Err(Broken) => (None, true),
    };
    Parsed { root, broken, diagnostics: builder.diagnostics }
}

/// The text is no YAML from here on; the diagnostic is already recorded.
struct Broken;

type Events<'a> = Parser<'a, granit_parser::StrInput<'a>>;

struct Builder<'a> {
    source: u16,
    text: &'a str,
    events: Events<'a>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    diagnostics: Vec<Diagnostic>,
    path: Vec<String>,
}

impl<'a> Builder<'a> {
    fn next(&mut self) -> Result<(Event<'a>, granit_parser::Span), Broken> {
        match self.events.next() {
            Some(Ok(event)) => Ok(event),
            Some(Err(e)) => {
                let span = self.point(e.marker());
                let mut message = explain(&e);
                let line = self.text.lines().nth(e.marker().line().saturating_sub(1));
                if line.is_some_and(|l| l.contains("${")) {
                    message.push_str("; write \"${env:NAME}\" in quotes inside braces or brackets");
                }
                self.diagnostics.push(Diagnostic::error(span, &[], message));
                Err(Broken)
            }
            None => Ok((Event::StreamEnd, granit_parser::Span::empty(Marker::new(0, 1, 0)))),
        }
    }

    fn stream(&mut self) -> Result<Option<Node>, Broken> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if root.is_some() => {
                    let span = self.span(&span);
                    self.fail(span, "a second YAML document: write one document a file")?;
                }
                Event::DocumentStart(..) => {
                    let (event, span) = self.next()?;
                    root = Some(self.node(event, &span, 0)?);
                }
                Event::StreamEnd => return Ok(root),
                _ => {}
            }
        }
    }

    fn node(
        &mut self,
        event: Event<'a>,
        span: &granit_parser::Span,
        depth: usize,
    ) -> Result<Node, Broken> {
        let at = self.span(span);
        self.nodes += 1;
        if depth > MAX_DEPTH {
            self.fail(at, format!("nested more than {MAX_DEPTH} levels deep"))?;
        }
        if self.nodes > MAX_NODES {
            self.fail(at, format!("more than {MAX_NODES} values, aliases counted in full"))?;
        }
        let (anchor, node) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                if let Some(tag) = &tag
                    && !tag.is_yaml_core_schema_tag("str")
                {
                    self.diagnostics.push(Diagnostic::error(
                        at,
                        &self.path,
                        "YAML tags are not supported: write the plain value",
                    ));
                }
                let kind = match (plain && tag.is_none(), text.into_owned()) {
                    (true, text) => return self.keep(anchor, at, scalar(&text), Some(text)),
                    (false, text) => Kind::Str(text),
                };
                let raw = if let Kind::Str(s) = &kind { Some(s.clone()) } else { None };
                (anchor, Node { span: at, kind, raw })
            }
            Event::Alias(id) => {
                let Some(node) = self.anchors.get(&id).cloned() else {
                    self.fail(at, "this alias stands inside the value that it names")?;
                    return Err(Broken);
                };
                self.nodes += size(&node);
                if self.nodes > MAX_NODES {
                    self.fail(
                        at,
                        format!("more than {MAX_NODES} values, aliases counted in full"),
                    )?;
                }
                return Ok(node);
            }
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                loop {
                    let (event, span) = self.next()?;
                    if matches!(event, Event::SequenceEnd) {
                        break;
                    }
                    self.path.push(items.len().to_string());
                    let item = self.node(event, &span, depth + 1);
                    self.path.pop();
                    items.push(item?);
                }
                (anchor, Node { span: at, kind: Kind::Seq(items), raw: None })
            }
            Event::MappingStart(_, anchor, _) => {
                let entries = self.map(depth)?;
                (anchor, Node { span: at, kind: Kind::Map(entries), raw: None })
            }
            _ => (0, Node { span: at, kind: Kind::Null, raw: None }),
        };
        self.keep(anchor, node.span, node.kind, node.raw)
    }

    fn keep(
        &mut self,
        anchor: usize,
        span: Span,
        kind: Kind,
        raw: Option<String>,
    ) -> Result<Node, Broken> {
        let node = Node { span, kind, raw };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry>, Broken> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut merged: Vec<Entry> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let key_span = self.span(&span);
            let plain = matches!(&event, Event::Scalar(_, ScalarStyle::Plain, ..));
            let key_node = self.node(event, &span, depth + 1)?;
            let (event, span) = self.next()?;
            let Some(key) =
                key_node.raw.filter(|_| !matches!(key_node.kind, Kind::Seq(_) | Kind::Map(_)))
            else {
                self.diagnostics.push(Diagnostic::error(
                    key_span,
                    &self.path,
                    "a key must be text, not a list or a map",
                ));
                self.node(event, &span, depth + 1)?;
                continue;
            };
            self.path.push(key.clone());
            let value = self.node(event, &span, depth + 1);
            let path = self.path.clone();
            self.path.pop();
            let value = value?;
            if plain && key == "<<" {
                self.merge(key_span, &value, &mut merged);
            } else if let Some(first) = entries.iter().find(|e| e.key == key) {
                self.diagnostics.push(
                    Diagnostic::error(key_span, &path, format!("duplicate key `{key}`"))
                        .related(first.key_span, "first defined at"),
                );
            } else {
                entries.push(Entry { key, key_span, value });
            }
        }
        // Keys written out win over merged ones, wherever the merge key stands.
        for entry in merged {
            if !entries.iter().any(|e| e.key == entry.key) {
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    fn merge(&mut self, key_span: Span, value: &Node, merged: &mut Vec<Entry>) {
        let maps: Vec<&Node> = match &value.kind {
            Kind::Seq(items) => items.iter().collect(),
            _ => vec![value],
        };
        for map in maps {
            let Kind::Map(entries) = &map.kind else {
                self.diagnostics.push(Diagnostic::error(
                    key_span,
                    &self.path,
                    format!(
                        "the merge key `<<` takes a map or a list of maps, not {}",
                        map.describe()
                    ),
                ));
                return;
            };
            for entry in entries {
                if !merged.iter().any(|e| e.key == entry.key) {
                    merged.push(entry.clone());
                }
            }
        }
    }

    fn fail(&mut self, span: Span, message: impl Into<String>) -> Result<(), Broken> {
        self.diagnostics.push(Diagnostic::error(span, &self.path, message));
        Err(Broken)
    }

    fn point(&self, marker: &Marker) -> Span {
        Span {
            source: self.source,
            line: clamp(marker.line()),
            column: clamp(marker.col() + 1),
            len: 1,
        }
    }

    fn span(&self, span: &granit_parser::Span) -> Span {
        let start = self.point(&span.start);
        let len = if span.end.line() == span.start.line() {
            span.end.col().saturating_sub(span.start.col())
        } else {
            1
        };
        Span { len: clamp(len.max(1)), ..start }
    }
}

fn clamp(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn size(node: &Node) -> usize {
    1 + match &node.kind {
        Kind::Seq(items) => items.iter().map(size).sum(),
        Kind::Map(entries) => entries.iter().map(|e| 1 + size(&e.value)).sum(),
        _ => 0,
    }
}

/// The parser's reason, with the remedy for the mistakes people make.
fn explain(error: &granit_parser::ScanError) -> String {
    use granit_parser::ErrorKind as E;
    match error.kind() {
        E::TabNotAllowed | E::TabInBlockIndentation | E::TabInIndentation => {
            "a tab in the indentation: YAML indents with spaces".to_owned()
        }
        E::RecursionLimitExceeded => format!("nested more than {MAX_DEPTH} levels deep"),
        E::UnknownAnchor => {
            "this alias has no anchor before it: write `&name` at the value".to_owned()
        }
        E::BomInsideDocument => "a byte-order mark inside the text: remove it".to_owned(),
        _ => format!("not valid YAML: {}", error.info()),
    }
}
