//! Bad (and odd) configurations and the exact text that a user gets for each.
//!
//! `tests/golden/NAME.yaml` is the input, `NAME.expected` what is printed. Lines at its top may
//! say `# set: A=B`, `# env: NAME=VALUE` or `# also: OTHER.yaml` (a file merged over this one).
//! `UPDATE_GOLDEN=1 cargo test -p wattpipe-agent --test golden` rewrites what is expected; read
//! the difference before you commit it.

#![expect(clippy::unwrap_used, reason = "a test's own files")]

mod support;

use std::{collections::HashMap, fmt::Write as _, fs, path::Path};

use wattpipe_agent::config::{Input, load, load_texts};

/// What loading `input` prints, `ok` on success.
fn outcome(input: &Input, env: &HashMap<String, String>) -> String {
    let agent = support::agent();
    let (loaded, report) = load(input, agent.registry(), &|name| env.get(name).cloned());
    let mut out = String::new();
    for text in report.warnings.iter().chain(&report.errors) {
        out.push_str(text);
    }
    assert_eq!(loaded.is_some(), report.errors.is_empty());
    if loaded.is_some() {
        let _ = writeln!(out, "ok");
    }
    out
}

fn check_file(path: &Path) -> Result<(), String> {
    let text = fs::read(path).unwrap();
    let text = String::from_utf8_lossy(&text);
    let mut input = Input { files: vec![path.to_owned()], sets: vec![] };
    let mut env = HashMap::new();
    for line in text.lines().take_while(|l| l.starts_with('#')) {
        if let Some(set) = line.strip_prefix("# set: ") {
            input.sets.push(set.to_owned());
        } else if let Some(pair) = line.strip_prefix("# env: ") {
            let (name, value) = pair.split_once('=').unwrap();
            env.insert(name.to_owned(), value.to_owned());
        } else if let Some(other) = line.strip_prefix("# also: ") {
            input.files.push(path.with_file_name(other));
        }
    }
    // Messages name files as they were given: here, by their names alone.
    let dir = format!("{}/", path.parent().unwrap().display());
    let got = outcome(&input, &env).replace(&dir, "");
    let expected_path = path.with_extension("expected");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&expected_path, &got).unwrap();
        return Ok(());
    }
    let expected = fs::read_to_string(&expected_path).unwrap_or_default();
    if got == expected {
        return Ok(());
    }
    Err(format!("{}:\n--- expected\n{expected}--- got\n{got}", path.display()))
}

#[test]
fn every_bad_configuration_says_what_is_wrong() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut inputs: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "yaml"))
        .filter(|p| !p.to_string_lossy().ends_with("-over.yaml"))
        .collect();
    inputs.sort();
    assert!(inputs.len() >= 60, "only {} golden inputs", inputs.len());
    let failures: Vec<_> = inputs.iter().filter_map(|p| check_file(p).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[track_caller]
fn check_generated(text: &str, expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("big.yaml");
    fs::write(&file, text).unwrap();
    let input = Input { files: vec![file], sets: vec![] };
    let got = outcome(&input, &HashMap::new()).replace(&format!("{}/", dir.path().display()), "");
    assert_eq!(got, expected);
}

#[test]
fn huge_and_deep_texts_are_refused() {
    check_generated(
        &"#".repeat((1 << 20) + 1),
        "error: the configuration file `big.yaml` is larger than 1 MiB\n",
    );
    let deep = "[".repeat(5000);
    let got = {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("deep.yaml");
        fs::write(&file, &deep).unwrap();
        outcome(&Input { files: vec![file], sets: vec![] }, &HashMap::new())
    };
    assert!(got.contains("nested more than 64 levels deep"), "{got}");
}

/// Deterministic noise, so that a failure can be looked at again.
struct Noise(u64);

impl Noise {
    fn next(&mut self, below: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }
}

/// What means something to YAML or to a substitution.
const MARKS: &[u8] = b"{}[]:,-&*!|>'\"%@`#\t\n $0x<";

/// What the fuzz target does for ten minutes, for a moment: texts cut, doubled and spliced.
#[test]
fn mangled_texts_never_panic() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let texts: Vec<Vec<u8>> =
        fs::read_dir(dir).unwrap().map(|e| fs::read(e.unwrap().path()).unwrap()).collect();
    let agent = support::agent();
    let env = |name: &str| (name.len() < 3).then(|| format!("${{env:{name}X}}"));
    let mut noise = Noise(7);
    for _ in 0..3000 {
        let (a, b) = (&texts[noise.next(texts.len())], &texts[noise.next(texts.len())]);
        let mut text = a[..noise.next(a.len() + 1)].to_vec();
        text.extend_from_slice(&b[noise.next(b.len() + 1)..]);
        for _ in 0..noise.next(4) {
            if !text.is_empty() {
                let at = noise.next(text.len());
                text[at] = MARKS[noise.next(MARKS.len())];
            }
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        let (loaded, report) =
            load_texts(vec![("x".into(), text)], &[], false, agent.registry(), &env);
        assert_eq!(loaded.is_some(), report.errors.is_empty());
    }
}

#[test]
fn secrets_are_redacted_where_the_configuration_is_printed() {
    let agent = support::agent();
    let text = "sources: { procfs: }
exporters: { otlp: { endpoint: \"http://me:hush@there:1/@\", token: hush-hush, headers: { authorization: \"${env:T}\" } } }
service: { pipelines: { a: { sources: [procfs], exporters: [otlp] } } }
";
    let env = |_: &str| Some("Bearer hush".to_owned());
    let texts = vec![("x".to_owned(), text.to_owned())];
    let (loaded, report) = load_texts(texts, &[], false, agent.registry(), &env);
    assert_eq!(report.errors, [""; 0]);
    let shown = loaded.unwrap().effective().to_string();
    assert!(!shown.contains("hush"), "{shown}");
    assert!(shown.contains("http://[REDACTED]@there:1/@"), "{shown}");
    assert_eq!(shown.matches("[REDACTED]").count(), 3, "{shown}");
}
