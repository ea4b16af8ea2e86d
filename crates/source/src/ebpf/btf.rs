//! A reader for the kernel's type information (BTF), as small as the job: where is a member in a
//! structure, what is an enumerator's value, is there a type or function of that name.
//!
//! aya parses BTF too, but keeps structure members to itself. This one keeps the file's bytes and
//! one offset per type, and is dropped once the probe is loaded.

use std::ops::Range;

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
/// Deeper nesting of anonymous members than any kernel has.
const MAX_DEPTH: usize = 16;

/// Why type information cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// It is not what it should be.
    #[error("malformed type information: {0}")]
    Malformed(&'static str),
    /// This kernel has no such structure or member.
    #[error("the kernel's type information knows no {0}")]
    Missing(String),
}

mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

/// The fixed part of a type.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    /// Members, enumerators or parameters that follow.
    vlen: usize,
    /// Member offsets carry a bit-field size in their upper byte.
    bitfields: bool,
    /// The size, or the type referred to.
    size_or_type: u32,
    /// Where what follows begins.
    rest: usize,
}

/// Parsed type information.
pub(crate) struct Btf {
    bytes: Vec<u8>,
    /// Where each type begins; index 0 is `void`.
    types: Vec<u32>,
    strings: Range<usize>,
}

impl Btf {
    /// Takes over the content of `/sys/kernel/btf/vmlinux`.
    pub(crate) fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        let word = |at| read_u32(&bytes, at).ok_or(BtfError::Malformed("header cut short"));
        if bytes.get(..2) != Some(&MAGIC.to_ne_bytes()) {
            return Err(BtfError::Malformed("bad magic number"));
        }
        let header = word(4)? as usize;
        if header < HEADER_BYTES {
            return Err(BtfError::Malformed("bad header length"));
        }
        let types = section(&bytes, header, word(8)?, word(12)?)?;
        let strings = section(&bytes, header, word(16)?, word(20)?)?;
        let mut btf = Self { bytes, types: vec![0], strings };
        let mut at = types.start;
        while at < types.end {
            let Some(parsed) = btf.type_at(at) else {
                return Err(BtfError::Malformed("type cut short"));
            };
            let Some(extra) = extra_bytes(&parsed) else {
                // A kind newer than this reader: what came before it can still be used.
                break;
            };
            let end = parsed.rest + extra;
            if end > types.end {
                return Err(BtfError::Malformed("type cut short"));
            }
            btf.types.push(u32::try_from(at).map_err(|_| BtfError::Malformed("too large"))?);
            at = end;
        }
        Ok(btf)
    }

    /// Byte offset of a member, given as `structure.member` or `structure.member.inner`; members of
    /// anonymous structures and unions count as their parent's.
    pub(crate) fn offset(&self, path: &str) -> Result<u32, BtfError> {
        let missing = || BtfError::Missing(format!("`{path}`"));
        let mut names = path.split('.');
        let structure = names.next().ok_or_else(missing)?;
        // A name may stand for several structures; the first that has the member is meant.
        let names: Vec<&str> = names.collect();
        self.named(structure, &[kind::STRUCT, kind::UNION])
            .find_map(|id| self.walk(id, &names))
            .and_then(|bits| bits.is_multiple_of(8).then_some(bits / 8))
            .ok_or_else(missing)
    }

    /// Value of an enumerator.
    pub(crate) fn enumerator(&self, enumeration: &str, name: &str) -> Option<u32> {
        self.named(enumeration, &[kind::ENUM]).find_map(|id| {
            let parsed = self.by_id(id)?;
            (0..parsed.vlen).map(|i| parsed.rest + i * 8).find_map(|at| {
                (self.string(read_u32(&self.bytes, at)?) == name.as_bytes())
                    .then(|| read_u32(&self.bytes, at + 4))
                    .flatten()
            })
        })
    }

    /// Whether there is a function of this name.
    pub(crate) fn has_function(&self, name: &str) -> bool {
        self.named(name, &[kind::FUNC]).next().is_some()
    }

    /// Whether there is a type definition of this name.
    pub(crate) fn has_typedef(&self, name: &str) -> bool {
        self.named(name, &[kind::TYPEDEF]).next().is_some()
    }

    /// Whether there is a structure of this name.
    pub(crate) fn has_structure(&self, name: &str) -> bool {
        self.named(name, &[kind::STRUCT]).next().is_some()
    }

    /// Ids of the types of that name and one of these kinds.
    fn named<'a>(&'a self, name: &'a str, kinds: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        (1..self.types.len()).filter_map(move |id| {
            let id = u32::try_from(id).ok()?;
            let parsed = self.by_id(id)?;
            (kinds.contains(&parsed.kind) && self.string(parsed.name) == name.as_bytes())
                .then_some(id)
        })
    }

    /// Bit offset of the member that `names` leads to.
    fn walk(&self, mut id: u32, names: &[&str]) -> Option<u32> {
        let mut bits = 0u32;
        for (i, name) in names.iter().enumerate() {
            let (offset, member) = self.member(id, name, 0)?;
            bits = bits.checked_add(offset)?;
            if i + 1 < names.len() {
                id = self.resolve(member)?;
            }
        }
        Some(bits)
    }

    /// Bit offset and type of a member, looked for in anonymous members too.
    fn member(&self, id: u32, name: &str, depth: usize) -> Option<(u32, u32)> {
        let parsed = self.by_id(id)?;
        if !matches!(parsed.kind, kind::STRUCT | kind::UNION) || depth > MAX_DEPTH {
            return None;
        }
        for at in (0..parsed.vlen).map(|i| parsed.rest + i * 12) {
            let member_name = self.string(read_u32(&self.bytes, at)?);
            let member_type = read_u32(&self.bytes, at + 4)?;
            let raw = read_u32(&self.bytes, at + 8)?;
            let bits = if parsed.bitfields { raw & 0x00ff_ffff } else { raw };
            if member_name == name.as_bytes() {
                return Some((bits, member_type));
            }
            if member_name.is_empty()
                && let Some((inner, found)) =
                    self.member(self.resolve(member_type)?, name, depth + 1)
            {
                return Some((bits.checked_add(inner)?, found));
            }
        }
        None
    }

    /// Follows type definitions and qualifiers.
    fn resolve(&self, mut id: u32) -> Option<u32> {
        for _ in 0..MAX_DEPTH {
            let parsed = self.by_id(id)?;
            match parsed.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = parsed.size_or_type
                }
                _ => return Some(id),
            }
        }
        None
    }

    fn by_id(&self, id: u32) -> Option<Type> {
        match id {
            0 => None,
            id => self.type_at(*self.types.get(id as usize)? as usize),
        }
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        let info = read_u32(&self.bytes, at + 4)?;
        Some(Type {
            name: read_u32(&self.bytes, at)?,
            kind: (info >> 24) & 0x1f,
            vlen: (info & 0xffff) as usize,
            bitfields: info >> 31 == 1,
            size_or_type: read_u32(&self.bytes, at + 8)?,
            rest: at + 12,
        })
    }

    fn string(&self, offset: u32) -> &[u8] {
        let strings = &self.bytes[self.strings.clone()];
        let tail = strings.get(offset as usize..).unwrap_or_default();
        tail.split(|b| *b == 0).next().unwrap_or_default()
    }
}

/// Bytes after a type's fixed part; `None` for a kind that is not known.
fn extra_bytes(parsed: &Type) -> Option<usize> {
    Some(match parsed.kind {
        kind::INT | kind::VAR | kind::DECL_TAG => 4,
        kind::ARRAY => 12,
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => parsed.vlen * 12,
        kind::ENUM | kind::FUNC_PROTO => parsed.vlen * 8,
        1..=19 => 0,
        _ => return None,
    })
}

fn section(
    bytes: &[u8],
    header: usize,
    offset: u32,
    length: u32,
) -> Result<Range<usize>, BtfError> {
    let start = header.checked_add(offset as usize);
    let end = start.and_then(|s| s.checked_add(length as usize));
    match (start, end) {
        (Some(start), Some(end)) if end <= bytes.len() => Ok(start..end),
        _ => Err(BtfError::Malformed("section outside the file")),
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds BTF: types are added in order, ids count from 1.
    #[derive(Default)]
    struct Blob {
        types: Vec<u8>,
        strings: Vec<u8>,
    }

    impl Blob {
        fn name(&mut self, name: &str) -> u32 {
            if self.strings.is_empty() {
                self.strings.push(0);
            }
            if name.is_empty() {
                return 0;
            }
            let at = self.strings.len() as u32;
            self.strings.extend(name.bytes().chain([0]));
            at
        }

        fn words(&mut self, words: &[u32]) {
            self.types.extend(words.iter().flat_map(|w| w.to_ne_bytes()));
        }

        fn add(&mut self, name: &str, kind: u32, vlen: u32, size_or_type: u32, rest: &[u32]) {
            let name = self.name(name);
            self.words(&[name, kind << 24 | vlen, size_or_type]);
            self.words(rest);
        }

        fn compound(&mut self, name: &str, kind: u32, members: &[(&str, u32, u32)]) {
            let rest: Vec<u32> =
                members.iter().flat_map(|(n, t, bits)| [self.name(n), *t, *bits]).collect();
            self.add(name, kind, members.len() as u32, 64, &rest);
        }

        fn build(self) -> Vec<u8> {
            let mut out = Vec::new();
            out.extend(MAGIC.to_ne_bytes());
            out.extend([1, 0]);
            for word in
                [24, 0, self.types.len() as u32, self.types.len() as u32, self.strings.len() as u32]
            {
                out.extend(u32::to_ne_bytes(word));
            }
            out.extend(self.types);
            out.extend(self.strings);
            out
        }
    }

    fn sample() -> Vec<u8> {
        let mut blob = Blob::default();
        blob.add("int", kind::INT, 0, 4, &[0]); // 1
        blob.compound("sched_entity", kind::STRUCT, &[("load", 1, 0), ("exec_start", 1, 768)]); // 2
        blob.add("entity_t", kind::TYPEDEF, 0, 2, &[]); // 3
        blob.compound("", kind::UNION, &[("inner_a", 1, 0), ("inner_b", 1, 32)]); // 4
        blob.compound(
            "task_struct",
            kind::STRUCT,
            &[("state", 1, 0), ("se", 3, 1024), ("", 4, 2048), ("tgid", 1, 2112)],
        ); // 5
        let (a, b) = (blob.name("cpu_id"), blob.name("cpuacct_id"));
        blob.add("subsys", kind::ENUM, 2, 4, &[a, 0, b, 3]); // 6
        blob.add("bpf_iter_task", kind::FUNC, 0, 1, &[]); // 7
        blob.build()
    }

    #[test]
    fn finds_members_directly_nested_and_in_anonymous_unions() {
        let btf = Btf::parse(sample()).unwrap();
        let check = |path, expected| assert_eq!(btf.offset(path), Ok(expected), "{path}");
        check("task_struct.tgid", 264);
        check("task_struct.se.exec_start", 128 + 96);
        check("task_struct.inner_b", 256 + 4);
        assert!(matches!(btf.offset("task_struct.nothing"), Err(BtfError::Missing(_))));
        assert!(matches!(btf.offset("nothing.tgid"), Err(BtfError::Missing(_))));
    }

    #[test]
    fn finds_enumerators_functions_and_definitions() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.enumerator("subsys", "cpuacct_id"), Some(3));
        assert_eq!(btf.enumerator("subsys", "memory_id"), None);
        assert!(btf.has_function("bpf_iter_task") && !btf.has_function("entity_t"));
        assert!(btf.has_typedef("entity_t"));
    }

    #[test]
    fn every_truncation_is_an_error_or_harmless() {
        let whole = sample();
        for length in 0..whole.len() {
            if let Ok(btf) = Btf::parse(whole[..length].to_vec()) {
                let _ = btf.offset("task_struct.se.exec_start");
            }
        }
    }

    #[test]
    fn no_flipped_byte_makes_it_panic() {
        let whole = sample();
        for at in 0..whole.len() {
            for value in [0x00, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                if let Ok(btf) = Btf::parse(bytes) {
                    let _ = btf.offset("task_struct.se.exec_start");
                    let _ = btf.enumerator("subsys", "cpuacct_id");
                }
            }
        }
    }

    #[test]
    fn a_newer_kind_ends_the_list_but_not_the_parse() {
        let mut blob = Blob::default();
        blob.compound("known", kind::STRUCT, &[("member", 1, 64)]);
        blob.add("novelty", 25, 0, 0, &[]);
        let btf = Btf::parse(blob.build()).unwrap();
        assert_eq!(btf.offset("known.member"), Ok(8));
    }
}
