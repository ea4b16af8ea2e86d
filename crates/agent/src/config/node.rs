//! YAML as a tree that knows where each part stands. Strict: what other parsers let pass in
//! silence (duplicate keys, several documents, custom tags) is an error here.

use super::{diagnostic::Diagnostic, source::Span};

/// A value with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where it stands.
    pub span: Span,
    /// What it is.
    pub kind: Kind,
    /// The text of a scalar as written or substituted: what a key that wants text gets when the
    /// value looks like a number.
    pub raw: Option<String>,
}

/// The kinds of YAML's core schema.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// Any other number.
    Float(f64),
    /// Text.
    Str(String),
    /// A list.
    Seq(Vec<Node>),
    /// A map, in the order of the text.
    Map(Vec<Entry>),
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key stands.
    pub key_span: Span,
    /// The value.
    pub value: Node,
}

impl Node {
    /// The entry of `key`, where this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        match &self.kind {
            Kind::Map(entries) => entries.iter().find(|e| e.key == key),
            _ => None,
        }
    }

    /// What it is, for messages.
    pub fn describe(&self) -> &'static str {
        match self.kind {
            Kind::Null => "nothing",
            Kind::Bool(_) => "a boolean",
            Kind::Int(_) | Kind::Float(_) => "a number",
            Kind::Str(_) => "text",
            Kind::Seq(_) => "a list",
            Kind::Map(_) => "a map",
        }
    }

    /// The place of `path` below this node, as far down as it exists: the last key's span for a
    /// map entry, the item's for a list. The flag says whether all of it exists.
    pub fn locate(&self, path: &[String]) -> (Option<Span>, usize) {
        let (mut node, mut span) = (self, None);
        for (depth, step) in path.iter().enumerate() {
            match &node.kind {
                Kind::Map(entries) => match entries.iter().find(|e| e.key == *step) {
                    Some(entry) => (node, span) = (&entry.value, Some(entry.key_span)),
                    None => return (span, depth),
                },
                Kind::Seq(items) => match step.parse::<usize>().ok().and_then(|i| items.get(i)) {
                    Some(item) => (node, span) = (item, Some(item.span)),
                    None => return (span, depth),
                },
                _ => return (span, depth),
            }
        }
        (span, path.len())
    }

    /// The place of a value: its own where it stands on one line, else its key's.
    pub fn locate_value(&self, path: &[String]) -> Option<Span> {
        let node = self.at(path)?;
        let scalar = !matches!(node.kind, Kind::Seq(_) | Kind::Map(_) | Kind::Null);
        if scalar { Some(node.span) } else { self.locate(path).0 }
    }

    /// The node at `path`.
    pub fn at(&self, path: &[String]) -> Option<&Node> {
        path.iter().try_fold(self, |node, step| match &node.kind {
            Kind::Map(entries) => entries.iter().find(|e| e.key == *step).map(|e| &e.value),
            Kind::Seq(items) => step.parse::<usize>().ok().and_then(|i| items.get(i)),
            _ => None,
        })
    }

    /// The value for figment's layers. Numbers beyond 64 bits become floats.
    pub fn to_value(&self) -> figment::value::Value {
        use figment::value::{Empty, Num, Tag, Value};
        match &self.kind {
            Kind::Null => Value::Empty(Tag::Default, Empty::None),
            Kind::Bool(b) => Value::Bool(Tag::Default, *b),
            Kind::Int(i) => Value::Num(
                Tag::Default,
                match (u64::try_from(*i), i64::try_from(*i)) {
                    (Ok(u), _) => Num::U64(u),
                    (_, Ok(i)) => Num::I64(i),
                    _ => Num::F64(*i as f64),
                },
            ),
            Kind::Float(f) => Value::Num(Tag::Default, Num::F64(*f)),
            Kind::Str(s) => Value::String(Tag::Default, s.clone()),
            Kind::Seq(items) => {
                Value::Array(Tag::Default, items.iter().map(Node::to_value).collect())
            }
            Kind::Map(entries) => Value::Dict(
                Tag::Default,
                entries.iter().map(|e| (e.key.clone(), e.value.to_value())).collect(),
            ),
        }
    }
}

/// A scalar by YAML 1.2's core schema; plain text only, quoted text is always text.
pub fn scalar(text: &str) -> Kind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Kind::Null,
        "true" | "True" | "TRUE" => return Kind::Bool(true),
        "false" | "False" | "FALSE" => return Kind::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" => return Kind::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Kind::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Kind::Float(f64::NAN),
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let radix = |prefix: &str, radix| {
        text.strip_prefix(prefix)
            .filter(|d| !d.starts_with(['+', '-']))
            .and_then(|d| i128::from_str_radix(d, radix).ok())
    };
    if let Some(number) = radix("0x", 16).or_else(|| radix("0o", 8)) {
        return Kind::Int(number);
    }
    if !unsigned.is_empty() && unsigned.bytes().all(|b| b.is_ascii_digit()) {
        return match text.parse::<i128>() {
            Ok(number) => Kind::Int(number),
            Err(_) => text.parse().map_or_else(|_| Kind::Str(text.to_owned()), Kind::Float),
        };
    }
    let float_like = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && unsigned.bytes().any(|b| b.is_ascii_digit())
        && unsigned.bytes().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    match text.parse::<f64>() {
        Ok(number) if float_like => Kind::Float(number),
        _ => Kind::Str(text.to_owned()),
    }
}

/// What a parse found: the tree where there is one, and everything that is wrong with it.
#[derive(Debug, Default)]
pub struct Parsed {
    /// The tree; `None` for an empty text or one that is no YAML.
    pub root: Option<Node>,
    /// The text is no YAML.
    pub broken: bool,
    /// Findings.
    pub diagnostics: Vec<Diagnostic>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_have_the_core_schemas_types() {
        for (text, expected) in [
            ("1", Kind::Int(1)),
            ("-7", Kind::Int(-7)),
            ("0x1F", Kind::Int(31)),
            ("0o17", Kind::Int(15)),
            ("1.5", Kind::Float(1.5)),
            ("1e3", Kind::Float(1000.0)),
            ("yes", Kind::Str("yes".into())),
            ("1s", Kind::Str("1s".into())),
            ("1.2.3", Kind::Str("1.2.3".into())),
            ("127.0.0.1:80", Kind::Str("127.0.0.1:80".into())),
            ("infinity", Kind::Str("infinity".into())),
            ("e5", Kind::Str("e5".into())),
            ("", Kind::Null),
            ("~", Kind::Null),
            ("true", Kind::Bool(true)),
            ("18446744073709551615", Kind::Int(u64::MAX.into())),
        ] {
            assert_eq!(scalar(text), expected, "{text}");
        }
    }
}
