//! Ids, units and the two quantity types that configuration uses. A number without its unit never
//! crosses a module boundary.

use std::{fmt, ops::Sub, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A point in time or a length of time in nanoseconds. Points are on `CLOCK_MONOTONIC` unless a
/// name says otherwise.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Seconds as a float, for rates and exported values.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// `self - earlier`, or zero where `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        Nanos(self.0 - other.0)
    }
}

impl std::iter::Sum for Nanos {
    fn sum<I: Iterator<Item = Nanos>>(items: I) -> Nanos {
        Nanos(items.map(|n| n.0).sum())
    }
}

impl From<Duration> for Nanos {
    fn from(d: Duration) -> Self {
        Nanos(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A process: the kernel's `tgid`, which userland calls pid. 0 is a CPU's idle task, never a
/// workload.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Tgid(pub u32);

/// A logical CPU by the kernel's number. Numbers need not be contiguous.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Cpu(pub u32);

/// A CPU package (socket) by `physical_package_id`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Package(pub u32);

/// A cgroup by the inode of its directory in the hierarchy in use.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct CgroupId(pub u64);

impl Tgid {
    /// Nobody that is known: as the `next` of a switch it says that the CPU's time belongs to no
    /// process from there on (stolen by the hypervisor, or taken by interrupts).
    pub const NOBODY: Tgid = Tgid(u32::MAX);
}

impl fmt::Display for Tgid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A duration in configuration: `1s`, `500ms`, `1h30m`, `1.5s`. A bare number is refused, since
/// its unit would be a guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigDuration(pub Duration);

impl ConfigDuration {
    /// From whole milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    /// From whole seconds.
    pub const fn from_secs(s: u64) -> Self {
        Self(Duration::from_secs(s))
    }

    /// As nanoseconds.
    pub fn nanos(self) -> Nanos {
        self.0.into()
    }
}

impl FromStr for ConfigDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "0" {
            return Ok(Self(Duration::ZERO));
        }
        if let Ok(d) = humantime::parse_duration(text) {
            return Ok(Self(d));
        }
        parse_go_duration(text)
            .map(Self)
            .ok_or_else(|| format!("invalid duration `{text}`: write a number with its unit, such as 500ms, 1s or 1h30m"))
    }
}

/// Go's form, which adds decimals to what humantime reads: `1.5h`, `0.25s`.
fn parse_go_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0f64;
    if text.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let value: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_len = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let nanos = match &rest[..unit_len] {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        rest = &rest[unit_len..];
        total += value * nanos;
    }
    (total.is_finite() && (0.0..9.2e18).contains(&total))
        .then(|| Duration::from_nanos(total as u64))
}

impl fmt::Display for ConfigDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", humantime::format_duration(self.0).to_string().replace(' ', ""))
    }
}

impl Serialize for ConfigDuration {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ConfigDuration {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl de::Visitor<'_> for V {
            type Value = ConfigDuration;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration with its unit, such as 500ms, 1s or 1h30m")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<ConfigDuration, E> {
                v.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<ConfigDuration, E> {
                if v == 0 {
                    return Ok(ConfigDuration::default());
                }
                Err(E::custom(format!("`{v}` has no unit: write `{v}s` or `{v}ms`")))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<ConfigDuration, E> {
                match u64::try_from(v) {
                    Ok(v) => self.visit_u64(v),
                    Err(_) => Err(E::custom(format!("`{v}` is negative: a duration is not"))),
                }
            }
        }
        d.deserialize_any(V)
    }
}

impl JsonSchema for ConfigDuration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A duration with its unit: 500ms, 1s, 1h30m.",
            "pattern": "^([0-9]+(\\.[0-9]+)?\\s*[a-zµμ]+\\s*)+$|^0$"
        })
    }
}

/// A size in configuration: `8MiB`, `64KiB`, `1GB`, or plain bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigSize(pub u64);

impl ConfigSize {
    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ConfigSize {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.trim().parse::<bytesize::ByteSize>().map(|b| Self(b.0)).map_err(|_| {
            format!("invalid size `{text}`: write bytes or a unit, such as 8MiB or 64KiB")
        })
    }
}

impl fmt::Display for ConfigSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        self.0.fmt(f)
    }
}

impl Serialize for ConfigSize {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ConfigSize {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl de::Visitor<'_> for V {
            type Value = ConfigSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size, such as 8MiB, 64KiB or a number of bytes")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<ConfigSize, E> {
                v.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<ConfigSize, E> {
                Ok(ConfigSize(v))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<ConfigSize, E> {
                u64::try_from(v)
                    .map(ConfigSize)
                    .map_err(|_| E::custom(format!("`{v}` is negative: a size is not")))
            }
        }
        d.deserialize_any(V)
    }
}

impl JsonSchema for ConfigSize {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "integer"],
            "description": "A size: bytes, or a number with a unit such as 8MiB or 64KiB.",
            "minimum": 0
        })
    }
}

/// A unix time in nanoseconds as RFC 3339 in UTC with nanoseconds, the form of all records.
pub fn rfc3339(unix_ns: u64) -> String {
    let time = std::time::UNIX_EPOCH + Duration::from_nanos(unix_ns);
    humantime::format_rfc3339_nanos(time).to_string()
}

/// A credential in configuration. It prints and serialises as `[REDACTED]`.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[REDACTED]")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str("[REDACTED]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_duration(text: &str, expected: Option<u64>) {
        let got = text.parse::<ConfigDuration>().ok().map(|d| d.nanos().0);
        assert_eq!(got, expected, "{text}");
    }

    #[test]
    fn durations_in_both_styles() {
        check_duration("1s", Some(1_000_000_000));
        check_duration("500ms", Some(500_000_000));
        check_duration("1h30m", Some(5_400_000_000_000));
        check_duration("1h 30m", Some(5_400_000_000_000));
        check_duration("1.5s", Some(1_500_000_000));
        check_duration("0", Some(0));
        check_duration("100us", Some(100_000));
        check_duration("5", None);
        check_duration("1parsec", None);
        check_duration("-1s", None);
        check_duration("", None);
    }

    #[test]
    fn durations_print_as_they_parse() {
        for text in ["1s", "1h30m", "250ms", "0s"] {
            let d: ConfigDuration = text.parse().unwrap();
            assert_eq!(d.to_string().parse::<ConfigDuration>().unwrap(), d);
        }
    }

    #[test]
    fn times_print_with_nanoseconds() {
        assert_eq!(rfc3339(1_790_000_000_000_000_001), "2026-09-21T14:13:20.000000001Z");
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("8MiB", 8 << 20), ("64KiB", 64 << 10), ("4096", 4096), ("1GB", 1_000_000_000)]
        {
            assert_eq!(text.parse::<ConfigSize>().unwrap().0, bytes, "{text}");
        }
        assert!("8 furlongs".parse::<ConfigSize>().is_err());
        assert_eq!(ConfigSize::mib(8).to_string(), "8MiB");
        assert_eq!(ConfigSize(1500).to_string(), "1500");
    }
}
