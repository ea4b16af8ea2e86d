//! The configuration loader: whatever the text and the environment, there is a configuration or
//! there are errors, and never a panic. Seeds: `crates/agent/tests/golden/*.yaml`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use wattpipe_agent::{Agent, AgentBuilder, config::load_texts};

static AGENT: LazyLock<AgentBuilder> = LazyLock::new(|| Agent::builder().with_defaults());

fuzz_target!(|data: (String, String, Option<String>)| {
    let (text, set, variable) = data;
    let env = |name: &str| variable.clone().filter(|_| name != "ABSENT");
    let texts = vec![("fuzz.yaml".to_owned(), text)];
    let (loaded, report) = load_texts(texts, &[set], false, AGENT.registry(), &env);
    assert_eq!(loaded.is_some(), report.errors.is_empty());
});
