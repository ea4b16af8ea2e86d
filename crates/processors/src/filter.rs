//! `filter`: keeps rows by their attributes.
//!
//! ```yaml
//! processors:
//!   filter:
//!     include:                                   # empty: every row; else rows that match a rule
//!       - k8s.namespace.name: [shop, "team-*"]   # a glob over the whole value; a list: any of it
//!     exclude:                                   # rows that match a rule go
//!       - process.executable.name: { regex: "^java-[0-9]+$" }
//!         container.id: { exists: true }         # all keys of a rule must match
//! ```
//!
//! What goes is nobody's from there on: its CPU time and joules are counted as unattributed, so
//! that the sums of windows and zones still hold. A missing attribute matches no pattern.

use std::{collections::BTreeMap, fmt, sync::Arc};

use globset::{GlobBuilder, GlobMatcher};
use regex::Regex;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};
use wattpipe_pipeline::{
    Batch, BatchKind, BuildContext, Config, ConfigProblem, Processor, ProcessorComponent,
    ProcessorError,
    batch::{UsageBatch, UsageRow},
    identity::{AttributeSet, Value},
    registry::BuildError,
    runner,
    telemetry::Counter,
};

/// Configuration of `filter`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FilterConfig {
    /// Rules of which one must match; empty lets every row in.
    pub include: Vec<Rule>,
    /// Rules of which none may match.
    pub exclude: Vec<Rule>,
}

/// Attributes with what their values must be; all of them must match.
pub type Rule = BTreeMap<String, Pattern>;

/// What a value must be.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Pattern {
    /// A glob over the whole value.
    Glob(String),
    /// Any of these globs.
    Any(Vec<String>),
    /// A regular expression, anywhere in the value unless anchored.
    Regex {
        /// The expression.
        regex: String,
    },
    /// Whether the attribute is there at all.
    Exists {
        /// It must be (or must not).
        exists: bool,
    },
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        /// A pid or the like, written without quotes.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Text {
            Str(String),
            Int(i64),
        }
        impl Text {
            fn into_string(self) -> String {
                match self {
                    Self::Str(s) => s,
                    Self::Int(i) => i.to_string(),
                }
            }
        }
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = Pattern;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a glob, a list of globs, `{ regex: ... }` or `{ exists: ... }`")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Pattern, E> {
                Ok(Pattern::Glob(v.to_owned()))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Pattern, E> {
                Ok(Pattern::Glob(v.to_string()))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Pattern, E> {
                Ok(Pattern::Glob(v.to_string()))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Pattern, A::Error> {
                let mut globs = Vec::new();
                while let Some(glob) = seq.next_element::<Text>()? {
                    globs.push(glob.into_string());
                }
                Ok(Pattern::Any(globs))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Pattern, A::Error> {
                let pattern = match map.next_key::<String>()?.as_deref() {
                    Some("regex") => Pattern::Regex { regex: map.next_value()? },
                    Some("exists") => Pattern::Exists { exists: map.next_value()? },
                    Some(other) => {
                        return Err(de::Error::unknown_field(other, &["regex", "exists"]));
                    }
                    None => return Err(de::Error::invalid_length(0, &self)),
                };
                match map.next_key::<String>()? {
                    None => Ok(pattern),
                    Some(_) => Err(de::Error::invalid_length(2, &self)),
                }
            }
        }
        d.deserialize_any(V)
    }
}

impl JsonSchema for Pattern {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Pattern".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let only = |key: &str, kind: &str| {
            json_schema!({
                "type": "object",
                "properties": { key: { "type": kind } },
                "required": [key],
                "additionalProperties": false
            })
        };
        json_schema!({
            "description": "A glob over the whole value, a list of globs (any of them), a regular expression, or whether the attribute is there.",
            "oneOf": [
                { "type": ["string", "integer"] },
                { "type": "array", "items": { "type": ["string", "integer"] } },
                only("regex", "string"),
                only("exists", "boolean")
            ]
        })
    }
}

impl Config for FilterConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        for (list, rules) in [("include", &self.include), ("exclude", &self.exclude)] {
            for (i, rule) in rules.iter().enumerate() {
                let at = |key: Option<&str>, message: String| ConfigProblem {
                    path: [list, &i.to_string()]
                        .into_iter()
                        .chain(key)
                        .map(str::to_owned)
                        .collect(),
                    message,
                    allowed: Vec::new(),
                };
                if rule.is_empty() {
                    problems.push(at(None, "a rule names at least one attribute".into()));
                }
                for (key, pattern) in rule {
                    if let Err(message) = Matcher::new(pattern) {
                        problems.push(at(Some(key), message));
                    }
                }
            }
        }
        problems
    }

    fn attributes(&self) -> Vec<(Vec<String>, &str)> {
        let lists = [("include", &self.include), ("exclude", &self.exclude)];
        let rules = lists.into_iter().flat_map(|(list, rules)| {
            rules.iter().enumerate().map(move |(i, rule)| (list.to_owned(), i.to_string(), rule))
        });
        rules
            .flat_map(|(list, i, rule)| {
                rule.keys().map(move |key| (vec![list.clone(), i.clone(), key.clone()], &**key))
            })
            .collect()
    }
}

/// A compiled pattern.
#[derive(Debug)]
enum Matcher {
    Globs(Vec<GlobMatcher>),
    Regex(Regex),
    Exists(bool),
}

impl Matcher {
    fn new(pattern: &Pattern) -> Result<Self, String> {
        match pattern {
            Pattern::Glob(text) => Ok(Self::Globs(vec![glob(text)?])),
            Pattern::Any(texts) if texts.is_empty() => Err("an empty list matches nothing".into()),
            Pattern::Any(texts) => {
                Ok(Self::Globs(texts.iter().map(|t| glob(t)).collect::<Result<_, _>>()?))
            }
            Pattern::Regex { regex } => Regex::new(regex)
                .map(Self::Regex)
                .map_err(|e| format!("invalid regular expression `{regex}`: {e}")),
            Pattern::Exists { exists } => Ok(Self::Exists(*exists)),
        }
    }

    fn matches(&self, value: Option<&Value>) -> bool {
        let text = |value: &Value, test: &dyn Fn(&str) -> bool| match value.as_str() {
            Some(text) => test(text),
            None => test(&value.to_string()),
        };
        match self {
            Self::Exists(wanted) => value.is_some() == *wanted,
            Self::Globs(globs) => {
                value.is_some_and(|v| text(v, &|t| globs.iter().any(|g| g.is_match(t))))
            }
            Self::Regex(regex) => value.is_some_and(|v| text(v, &|t| regex.is_match(t))),
        }
    }
}

fn glob(text: &str) -> Result<GlobMatcher, String> {
    // A value is no path: `*` matches `/` too.
    GlobBuilder::new(text)
        .literal_separator(false)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|e| format!("invalid glob `{text}`: {}", e.kind()))
}

type Rules = Vec<Vec<(String, Matcher)>>;

fn compile(rules: &[Rule]) -> Result<Rules, BuildError> {
    let compile = |(key, pattern): (&String, &Pattern)| Ok((key.clone(), Matcher::new(pattern)?));
    rules
        .iter()
        .map(|rule| rule.iter().map(compile).collect::<Result<_, _>>().map_err(BuildError))
        .collect()
}

/// The processor.
#[derive(Debug)]
pub struct Filter {
    include: Rules,
    exclude: Rules,
    dropped: Counter,
}

impl ProcessorComponent for Filter {
    const NAME: &'static str = "filter";
    const DOC: &'static str = "Keeps rows by their attributes; the others become unattributed.";
    const TAKES: BatchKind = BatchKind::Usage;
    const EMITS: BatchKind = BatchKind::Usage;
    const MERGES_ROWS: bool = true;
    type Config = FilterConfig;

    fn build(config: FilterConfig, context: &BuildContext) -> Result<Self, BuildError> {
        Ok(Self {
            include: compile(&config.include)?,
            exclude: compile(&config.exclude)?,
            dropped: context.telemetry.counter(
                "wattpipe_filter_dropped_total",
                "Rows that a filter took out.",
                &[("processor", &context.id)],
            ),
        })
    }
}

impl Processor for Filter {
    fn process(&mut self, batch: Batch) -> Result<Option<Batch>, ProcessorError> {
        let Batch::Usage(usage) = batch else { return Ok(Some(batch)) };
        let mut usage = runner::own(usage);
        usage.slices.clear();
        let (kept, gone) =
            std::mem::take(&mut usage.rows).into_iter().partition(|r| self.keeps(&r.attributes));
        usage.rows = kept;
        self.drop_rows(&mut usage, &gone);
        Ok(Some(Batch::Usage(Arc::new(usage))))
    }
}

impl Filter {
    fn keeps(&self, attributes: &AttributeSet) -> bool {
        let any = |rules: &Rules| {
            rules.iter().any(|rule| rule.iter().all(|(key, m)| m.matches(attributes.get(key))))
        };
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }

    fn drop_rows(&self, usage: &mut UsageBatch, gone: &[UsageRow]) {
        self.dropped.add(gone.len() as u64);
        let window = &mut usage.window;
        for row in gone {
            let cpu = row.cpu.0.min(window.busy.0);
            window.busy.0 -= cpu;
            window.unattributed.0 += cpu;
            for share in &row.energy {
                if let Some(zone) = usage.zones.get_mut(usize::from(share.zone)) {
                    zone.active -= share.active;
                    zone.idle -= share.idle;
                    zone.unattributed += share.active + share.idle;
                }
            }
        }
        // Differences of floats end a rounding error below zero, or above where nothing is left.
        for (index, zone) in usage.zones.iter_mut().enumerate() {
            let holds = |share: fn(&wattpipe_pipeline::batch::RowEnergy) -> f64| {
                usage
                    .rows
                    .iter()
                    .flat_map(|r| &r.energy)
                    .any(|e| usize::from(e.zone) == index && share(e) != 0.0)
            };
            if !holds(|e| e.active) {
                zone.unattributed += zone.active;
                zone.active = 0.0;
            }
            if zone.idle < 0.0 {
                zone.unattributed += zone.idle;
                zone.idle = 0.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_sums, row, window};

    fn config(json: serde_json::Value) -> FilterConfig {
        serde_json::from_value(json).unwrap()
    }

    /// Which of the rows a..d stay.
    #[track_caller]
    fn check(json: serde_json::Value, expected: &str) {
        let config = config(json);
        assert_eq!(config.check(), []);
        let mut filter = Filter::build(config, &BuildContext::default()).unwrap();
        let rows = vec![
            row(&[("n", "a"), ("container.name", "web/1"), ("ns", "shop")], 10, 1.0),
            row(&[("n", "b"), ("container.name", "web/22"), ("ns", "team-x")], 20, 2.0),
            row(&[("n", "c"), ("ns", "team-y")], 40, 4.0),
            row(&[("n", "d")], 80, 0.7),
        ];
        let out = filter.process(Batch::Usage(Arc::new(window(0, rows)))).unwrap();
        let Some(Batch::Usage(out)) = out else { panic!("no usage") };
        check_sums(&out);
        let names: String = out.rows.iter().filter_map(|r| r.attributes.get_str("n")).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn rules() {
        use serde_json::json;
        check(json!({}), "abcd");
        check(json!({"include": [{"ns": "team-*"}]}), "bc");
        check(json!({"include": [{"ns": ["shop", "team-x"]}]}), "ab");
        check(json!({"include": [{"ns": "team"}]}), "");
        check(json!({"include": [{"container.name": "web*"}]}), "ab");
        check(json!({"exclude": [{"container.name": {"regex": "/[0-9]$"}}]}), "bcd");
        check(json!({"include": [{"container.name": {"exists": false}}]}), "cd");
        check(json!({"include": [{"ns": "team-*"}], "exclude": [{"n": "c"}]}), "b");
        check(json!({"include": [{"ns": "team-*", "container.name": "*"}]}), "b");
        check(json!({"exclude": [{"n": "a"}, {"n": "{b,d}"}]}), "c");
        check(json!({"exclude": [{"n": "*"}]}), "");
    }

    #[track_caller]
    fn check_problem(json: serde_json::Value, path: &[&str], part: &str) {
        let problems = config(json).check();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].path, path);
        assert!(problems[0].message.contains(part), "{}", problems[0].message);
    }

    #[test]
    fn problems_name_their_place() {
        use serde_json::json;
        let name = "container.name";
        check_problem(json!({"include": [{name: "[a"}]}), &["include", "0", name], "glob");
        let regex = json!({"exclude": [{"n": "a"}, {name: {"regex": "("}}]});
        check_problem(regex, &["exclude", "1", name], "regular expression");
        check_problem(json!({"include": [{}]}), &["include", "0"], "at least one");
        check_problem(json!({"include": [{name: []}]}), &["include", "0", name], "empty");
        let wrong =
            serde_json::from_value::<FilterConfig>(json!({"include": [{"a": {"glob": 1}}]}));
        assert!(wrong.unwrap_err().to_string().contains("regex"));
        assert!(serde_json::from_value::<FilterConfig>(json!({"include": [{"a": true}]})).is_err());
    }

    #[test]
    fn numbers_match_as_text() {
        let mut attributes = AttributeSet::new();
        attributes.set("process.pid", 7u32);
        let matches = |json: serde_json::Value| {
            let pattern: Pattern = serde_json::from_value(json).unwrap();
            Matcher::new(&pattern).unwrap().matches(attributes.get("process.pid"))
        };
        assert!(matches(serde_json::json!(7)));
        assert!(matches(serde_json::json!([6, "7"])));
        assert!(!matches(serde_json::json!("70")));
    }
}
