//! Layers of configuration: files in the order given, `--set` last. Maps merge, lists and other
//! values are replaced; figment does the merging, and this module keeps the places.

use figment::{
    Figment, Metadata, Profile, Provider,
    value::{Dict, Map, Value},
};

use super::{
    diagnostic::Diagnostic,
    node::{Entry, Kind, Node},
    source::{SourceSet, Span},
    yaml,
};

/// All layers, the strongest last.
#[derive(Clone, Debug, Default)]
pub struct Layers(Vec<Node>);

impl Layers {
    /// Puts one layer on top.
    pub fn push(&mut self, root: Node) {
        self.0.push(root);
    }

    /// The merged value.
    pub fn merged(&self) -> Dict {
        let mut figment = Figment::new();
        for root in &self.0 {
            figment = figment.merge(Layer(root));
        }
        let data = Provider::data(&figment).unwrap_or_default();
        data.into_iter().find(|(p, _)| *p == Profile::Default).map(|(_, d)| d).unwrap_or_default()
    }

    /// The place of `path` in the strongest layer that has all of it, else in the one that has
    /// most of it.
    pub fn locate(&self, path: &[String]) -> Option<Span> {
        let mut best: Option<(usize, Span)> = None;
        for root in self.0.iter().rev() {
            if let (Some(span), depth) = root.locate(path)
                && best.is_none_or(|(d, _)| depth > d)
            {
                best = Some((depth, span));
            }
        }
        best.map(|(_, span)| span)
    }

    /// The place of the value at `path`; where nothing is there, as [`Self::locate`] says.
    pub fn locate_value(&self, path: &[String]) -> Option<Span> {
        self.0.iter().rev().find_map(|root| root.locate_value(path)).or_else(|| self.locate(path))
    }

    /// The node at `path` in the strongest layer that has it.
    pub fn node(&self, path: &[String]) -> Option<&Node> {
        self.0.iter().rev().find_map(|root| root.at(path))
    }

    /// Warns where a later `null` drops a map that an earlier layer filled.
    pub fn warn_erased(&self, out: &mut Vec<Diagnostic>) {
        for (above, upper) in self.0.iter().enumerate().skip(1) {
            let mut path = Vec::new();
            erased(&self.0[..above], upper, &mut path, out);
        }
    }
}

fn erased(lower: &[Node], upper: &Node, path: &mut Vec<String>, out: &mut Vec<Diagnostic>) {
    let Kind::Map(entries) = &upper.kind else { return };
    for entry in entries {
        path.push(entry.key.clone());
        let filled = |root: &Node| {
            root.at(path).is_some_and(|n| matches!(&n.kind, Kind::Map(m) if !m.is_empty()))
        };
        if entry.value.kind == Kind::Null && lower.iter().any(filled) {
            out.push(Diagnostic::warning(
                entry.key_span,
                path,
                "nothing here replaces what an earlier file says: the defaults apply",
            ));
        }
        erased(lower, &entry.value, path, out);
        path.pop();
    }
}

struct Layer<'a>(&'a Node);

impl Provider for Layer<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named("configuration")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        match self.0.to_value() {
            Value::Dict(_, dict) => Ok(Map::from([(Profile::Default, dict)])),
            _ => Ok(Map::new()),
        }
    }
}

/// One `--set a.b.c=VALUE`. Keys with dots in them are reached with `::` between all keys.
pub fn parse_set(text: &str, sources: &mut SourceSet, out: &mut Vec<Diagnostic>) -> Option<Node> {
    let source = sources.add("--set", text);
    let at = |column: usize, len: usize| Span {
        source,
        line: 1,
        column: u32::try_from(column + 1).unwrap_or(1),
        len: u32::try_from(len.max(1)).unwrap_or(1),
    };
    let Some((key, value)) = text.split_once('=') else {
        out.push(Diagnostic::error(
            at(0, text.chars().count()),
            &[],
            format!("`{text}` is not of the form a.b.c=VALUE"),
        ));
        return None;
    };
    let keys: Vec<String> = if key.contains("::") {
        key.split("::").map(|k| k.trim().to_owned()).collect()
    } else {
        key.split('.').map(|k| k.trim().to_owned()).collect()
    };
    let key_len = key.chars().count();
    if keys.iter().any(String::is_empty) {
        let message = format!("`{key}` is not of the form a.b.c: a key is empty");
        out.push(Diagnostic::error(at(0, key_len), &[], message));
        return None;
    }
    let parsed = yaml::parse(source, value);
    let broken = !parsed.diagnostics.is_empty();
    out.extend(parsed.diagnostics.into_iter().map(|mut d| {
        d.path = keys.clone();
        d.span = Some(at(key_len + 1, value.chars().count()));
        d.related = None;
        d
    }));
    if broken {
        return None;
    }
    let span = at(key_len + 1, value.chars().count());
    let leaf = parsed.root.map_or(Node { span, kind: Kind::Null, raw: None }, |mut n| {
        shift(&mut n, span);
        n
    });
    let mut offset = key_len;
    let separator = if key.contains("::") { 2 } else { 1 };
    Some(keys.iter().rev().fold(leaf, |value, key| {
        let len = key.chars().count();
        offset = offset.saturating_sub(len);
        let key_span = at(offset, len);
        offset = offset.saturating_sub(separator);
        let entry = Entry { key: key.clone(), key_span, value };
        Node { span: key_span, kind: Kind::Map(vec![entry]), raw: None }
    }))
}

/// Everything in a `--set` value is pointed to as a whole.
fn shift(node: &mut Node, span: Span) {
    node.span = span;
    match &mut node.kind {
        Kind::Seq(items) => items.iter_mut().for_each(|n| shift(n, span)),
        Kind::Map(entries) => {
            for entry in entries {
                entry.key_span = span;
                shift(&mut entry.value, span);
            }
        }
        _ => {}
    }
}
