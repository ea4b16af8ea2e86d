//! `${env:NAME}`, `${env:NAME:-default}` and `$$` in configuration values.
//!
//! A value that is one substitution and nothing else is typed as YAML: `${env:PORT}` is a number,
//! `${env:SOCKETS}` may be a list. What a variable holds may itself refer to variables.

use super::{
    diagnostic::Diagnostic,
    node::{Kind, Node},
    source::Span,
    yaml,
};

/// Where variables come from.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Variables within variables.
const MAX_NESTING: usize = 16;
/// A value may not unfold to more than this.
const MAX_LEN: usize = 1 << 20;

/// Replaces all substitutions below `node` (which stands at `path`). False where `node` itself
/// could not be: the caller takes it out, so that no second error comes from what it holds.
pub fn expand(
    node: &mut Node,
    path: &mut Vec<String>,
    env: Env<'_>,
    out: &mut Vec<Diagnostic>,
) -> bool {
    let span = node.span;
    let mut failed = |what: String, path: &[String]| {
        out.push(Diagnostic::error(span, path, what));
        false
    };
    match &mut node.kind {
        Kind::Str(text) if text.contains('$') => match whole(text) {
            Some(inner) => match variable(inner, env, &mut Vec::new()) {
                Ok(text) => {
                    *node = typed(text, span);
                    true
                }
                Err(what) => failed(what, path),
            },
            None => match within(text, env, &mut Vec::new(), true) {
                Ok(new) => {
                    node.raw = Some(new.clone());
                    *text = new;
                    true
                }
                Err(what) => failed(what, path),
            },
        },
        Kind::Seq(items) => {
            let mut number = 0;
            items.retain_mut(|item| {
                path.push(number.to_string());
                number += 1;
                let keep = expand(item, path, env, out);
                path.pop();
                keep
            });
            true
        }
        Kind::Map(entries) => {
            entries.retain_mut(|entry| {
                path.push(entry.key.clone());
                let keep = expand(&mut entry.value, path, env, out);
                path.pop();
                keep
            });
            true
        }
        _ => true,
    }
}

/// The inside of `${...}` where that is all there is.
fn whole(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("${")?;
    let end = closing(inner)?;
    (end + 1 == inner.len()).then(|| &inner[..end])
}

/// A variable's text as a value: what YAML makes of it, else the text itself.
fn typed(text: String, span: Span) -> Node {
    let parsed = yaml::parse(span.source, &text);
    let kind = match parsed.root {
        Some(root) if parsed.diagnostics.is_empty() => root.kind,
        _ if text.trim().is_empty() => Kind::Null,
        _ => Kind::Str(text.clone()),
    };
    let mut node = Node { span, kind, raw: Some(text) };
    place(&mut node, span);
    node
}

/// Everything that came out of a variable stands where the variable is used.
fn place(node: &mut Node, span: Span) {
    node.span = span;
    match &mut node.kind {
        Kind::Seq(items) => items.iter_mut().for_each(|n| place(n, span)),
        Kind::Map(entries) => {
            for entry in entries {
                entry.key_span = span;
                place(&mut entry.value, span);
            }
        }
        _ => {}
    }
}

/// Substitutions in the midst of text. `$$` is unescaped only in what a person wrote
/// (`escapes`), never in what a variable holds: a password may well contain it.
fn within(
    text: &str,
    env: Env<'_>,
    stack: &mut Vec<String>,
    escapes: bool,
) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if escapes && let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if rest.starts_with("{env:") || (escapes && rest.starts_with('{')) {
            let inner = &rest[1..];
            let end = closing(inner).ok_or_else(|| {
                format!("`${{` without its `}}` in `{text}`; write `$$` for a dollar")
            })?;
            out.push_str(&variable(&inner[..end], env, stack)?);
            rest = &inner[end + 1..];
        } else {
            out.push('$');
        }
        if out.len() > MAX_LEN {
            return Err("the substitutions unfold to more than 1 MiB".to_owned());
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Where the brace that is already open closes, braces of nested substitutions skipped.
fn closing(inner: &str) -> Option<usize> {
    let mut depth = 1usize;
    let bytes = inner.as_bytes();
    for (i, byte) in bytes.iter().enumerate() {
        match byte {
            b'{' if i > 0 && bytes[i - 1] == b'$' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

/// The value of what stands between the braces.
fn variable(inner: &str, env: Env<'_>, stack: &mut Vec<String>) -> Result<String, String> {
    let Some(spec) = inner.strip_prefix("env:") else {
        return Err(match inner.split_once(':') {
            Some((scheme, _)) if is_name(scheme) => {
                format!(
                    "`${{{inner}}}`: there is no `{scheme}`, only `env`; write `$$` for a dollar"
                )
            }
            _ => format!("`${{{inner}}}`: write `${{env:{inner}}}`, or `$$` for a dollar"),
        });
    };
    let (name, default) = match spec.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (spec, None),
    };
    if !is_name(name) {
        return Err(format!(
            "`{name}` is no name of an environment variable: letters, digits and `_`, no digit first"
        ));
    }
    if stack.iter().any(|n| n == name) {
        let cycle: Vec<_> = stack.iter().map(String::as_str).chain([name]).collect();
        return Err(format!("environment variables refer to one another: {}", cycle.join(" -> ")));
    }
    if stack.len() >= MAX_NESTING {
        return Err(format!("more than {MAX_NESTING} environment variables within one another"));
    }
    stack.push(name.to_owned());
    let value = match (env(name), default) {
        (Some(value), _) => within(&value, env, stack, false),
        (None, Some(default)) => within(default, env, stack, true),
        (None, None) => Err(format!(
            "the environment variable `{name}` is not set: set it, or write `${{env:{name}:-default}}`"
        )),
    };
    stack.pop();
    value
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::node::scalar;

    fn env(name: &str) -> Option<String> {
        Some(
            match name {
                "PORT" => "4317",
                "HOST" => "collector",
                "PASSWORD" => "a$$b${c}",
                "LIST" => "[rapl, hwmon]",
                "OUTER" => "x-${env:HOST}",
                "A" => "${env:B}",
                "B" => "${env:A}",
                "EMPTY" => "",
                _ => return None,
            }
            .to_owned(),
        )
    }

    fn run(text: &str) -> Result<Node, String> {
        let span = Span { source: 0, line: 1, column: 1, len: 1 };
        let kind = Kind::Str(text.to_owned());
        let mut node = Node { span, kind, raw: Some(text.to_owned()) };
        let mut out = Vec::new();
        expand(&mut node, &mut Vec::new(), &env, &mut out);
        match out.pop() {
            Some(diagnostic) => Err(diagnostic.message),
            None => Ok(node),
        }
    }

    #[track_caller]
    fn check(text: &str, expected: Kind) {
        assert_eq!(run(text).map(|n| n.kind), Ok(expected), "{text}");
    }

    #[track_caller]
    fn check_error(text: &str, expected: &str) {
        assert_eq!(run(text).map(|n| n.kind), Err(expected.to_owned()), "{text}");
    }

    #[test]
    fn a_whole_value_is_typed_and_text_is_text() {
        check("${env:PORT}", Kind::Int(4317));
        check("${env:HOST}:${env:PORT}", Kind::Str("collector:4317".into()));
        check("${env:MISSING:-7}", Kind::Int(7));
        check("${env:MISSING:-}", Kind::Null);
        check("${env:MISSING:-${env:HOST}}", Kind::Str("collector".into()));
        check("${env:OUTER}", Kind::Str("x-collector".into()));
        check("${env:EMPTY:-x}", Kind::Null);
        check("${env:PASSWORD}", Kind::Str("a$$b${c}".into()));
        check("cost: $$5", Kind::Str("cost: $5".into()));
        check("$$ {env:PORT}", Kind::Str("$ {env:PORT}".into()));
        check("$${env:PORT}", Kind::Str("${env:PORT}".into()));
        check("a$b", Kind::Str("a$b".into()));
        let list = run("${env:LIST}").unwrap().to_value();
        assert_eq!(list, vec!["rapl", "hwmon"].into());
        assert_eq!(scalar("x"), Kind::Str("x".into()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        check_error(
            "${env:MISSING}",
            "the environment variable `MISSING` is not set: set it, or write `${env:MISSING:-default}`",
        );
        check_error("${env:A}", "environment variables refer to one another: A -> B -> A");
        check_error("${HOST}", "`${HOST}`: write `${env:HOST}`, or `$$` for a dollar");
        check_error(
            "${file:x}",
            "`${file:x}`: there is no `file`, only `env`; write `$$` for a dollar",
        );
        check_error("x${env:A", "`${` without its `}` in `x${env:A`; write `$$` for a dollar");
        check_error(
            "${env:1X}",
            "`1X` is no name of an environment variable: letters, digits and `_`, no digit first",
        );
    }
}
