//! `meters: auto | [] | [rapl, hwmon, ...]`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A kind of meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MeterKind {
    /// Running average power limit counters, by powercap or perf.
    Rapl,
    /// Energy and power sensors of the kernel's hardware monitoring.
    Hwmon,
    /// The battery's discharge: the whole machine, while it is not plugged in.
    Battery,
}

const KINDS: [(&str, MeterKind); 3] =
    [("rapl", MeterKind::Rapl), ("hwmon", MeterKind::Hwmon), ("battery", MeterKind::Battery)];

impl std::fmt::Display for MeterKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = KINDS.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// Which meters to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MeterSelection {
    /// The finest that there are: RAPL, else hwmon.
    #[default]
    Auto,
    /// These; none for an empty list.
    These(Vec<MeterKind>),
}

impl MeterSelection {
    /// The kinds to look for, in order of preference.
    pub fn kinds(&self) -> Vec<MeterKind> {
        match self {
            Self::Auto => vec![MeterKind::Rapl, MeterKind::Hwmon],
            Self::These(kinds) => kinds.clone(),
        }
    }

    /// Whether the choice is left to us.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

impl Serialize for MeterSelection {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => s.serialize_str("auto"),
            Self::These(kinds) => kinds.serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for MeterSelection {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = MeterSelection;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("auto, or a list of: rapl, hwmon, battery")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<MeterSelection, E> {
                match v {
                    "auto" => Ok(MeterSelection::Auto),
                    _ => Err(E::unknown_variant(v, &["auto"])),
                }
            }
            fn visit_seq<A: de::SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> Result<MeterSelection, A::Error> {
                let mut kinds = Vec::new();
                while let Some(kind) = seq.next_element::<MeterKind>()? {
                    if !kinds.contains(&kind) {
                        kinds.push(kind);
                    }
                }
                Ok(MeterSelection::These(kinds))
            }
        }
        d.deserialize_any(V)
    }
}

impl JsonSchema for MeterSelection {
    fn schema_name() -> Cow<'static, str> {
        "Meters".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "auto: the finest meters there are. Else a list; an empty one reads none.",
            "anyOf": [
                { "const": "auto" },
                { "type": "array", "items": { "enum": ["rapl", "hwmon", "battery"] } }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, expected: Option<MeterSelection>) {
        assert_eq!(serde_json::from_str(json).ok(), expected, "{json}");
    }

    #[test]
    fn auto_none_or_a_list() {
        check(r#""auto""#, Some(MeterSelection::Auto));
        check("[]", Some(MeterSelection::These(vec![])));
        check(
            r#"["hwmon","rapl","hwmon"]"#,
            Some(MeterSelection::These(vec![MeterKind::Hwmon, MeterKind::Rapl])),
        );
        check(r#""rapl""#, None);
        check(r#"["repl"]"#, None);
        for s in [MeterSelection::Auto, MeterSelection::These(vec![MeterKind::Rapl])] {
            check(&serde_json::to_string(&s).unwrap(), Some(s));
        }
    }
}
