//! Ours: the real processors, built from configuration as the agent builds them, fed batches.

use std::sync::Arc;

use wattpipe_pipeline::{
    Batch, BuildContext, Processor,
    batch::{IdleBasis, SwitchBatch, UsageBatch},
    identity::attr,
    registry::Registry,
};

use crate::{rivals::Given, sim::Workload};

/// `delta` and `power_model`.
pub struct Ours {
    chain: Vec<Box<dyn Processor>>,
    names: Vec<&'static str>,
    zones: &'static str,
    /// Active joules per block and workload.
    pub given: Given,
    /// Idle joules and measured joules per block, over the zones judged.
    pub idle: Vec<(f64, f64)>,
    /// Windows whose idle part rested on a baseline, by block.
    pub trusted: Vec<u32>,
    /// Sum and number of confidences told, by workload.
    pub confidence: Vec<(f64, u32)>,
    /// Largest absolute residual of a zone's line.
    pub residual: f64,
}

impl Ours {
    /// With this configuration of the model, judged on zones of this kind (`package`, `dram`).
    pub fn new(
        config: &serde_json::Value,
        workloads: &[Workload],
        zones: &'static str,
    ) -> Result<Self, String> {
        let registry = Registry {
            processors: wattpipe_processors::PROCESSORS.to_vec(),
            ..Registry::default()
        };
        let build = |name: &str, config: &serde_json::Value| {
            let entry = registry.processor(name).ok_or_else(|| format!("no processor {name}"))?;
            let value = figment_value(config)?;
            let factory = (entry.parse)(&value).map_err(|e| format!("{name}: {e:?}"))?;
            let mut processor =
                factory.build(&BuildContext::default()).map_err(|e| e.to_string())?;
            processor.start().map_err(|e| e.to_string())?;
            Ok::<_, String>(processor)
        };
        let chain = vec![build("delta", &serde_json::json!({}))?, build("power_model", config)?];
        Ok(Self {
            chain,
            names: workloads.iter().map(|w| w.name).collect(),
            zones,
            given: Vec::new(),
            idle: Vec::new(),
            trusted: Vec::new(),
            confidence: vec![(0.0, 0); workloads.len()],
            residual: 0.0,
        })
    }

    /// Takes one window's batch; `block` is where its energy goes.
    pub fn window(&mut self, batch: SwitchBatch, block: usize) -> Result<(), String> {
        let mut batch = Batch::Switches(Arc::new(batch));
        for processor in &mut self.chain {
            match processor.process(batch).map_err(|e| e.to_string())? {
                Some(next) => batch = next,
                None => return Ok(()),
            }
        }
        if let Batch::Usage(usage) = batch {
            self.take(&usage, block);
        }
        Ok(())
    }

    fn take(&mut self, usage: &UsageBatch, block: usize) {
        self.given.resize(block + 1, vec![0.0; self.names.len()]);
        self.idle.resize(block + 1, (0.0, 0.0));
        self.trusted.resize(block + 1, 0);
        let judged: Vec<bool> =
            usage.zones.iter().map(|z| z.zone.name.starts_with(self.zones)).collect();
        let mut active = vec![0.0; usage.zones.len()];
        for row in &usage.rows {
            let name = row.attributes.get_str(attr::PROCESS_EXECUTABLE_NAME);
            let workload = self.names.iter().position(|n| Some(*n) == name);
            for e in &row.energy {
                active[e.zone as usize] += e.active;
                if let (true, Some(w)) = (judged[e.zone as usize], workload) {
                    self.given[block][w] += e.active;
                }
            }
            if let (Some(w), Some(c)) = (workload, row.confidence) {
                self.confidence[w].0 += f64::from(c);
                self.confidence[w].1 += 1;
            }
        }
        for (at, zone) in usage.zones.iter().enumerate() {
            let residual = zone.joules - active[at] - zone.idle - zone.unattributed;
            self.residual = self.residual.max(residual.abs());
            if judged[at] {
                self.idle[block].0 += zone.idle;
                self.idle[block].1 += zone.joules;
                self.trusted[block] += u32::from(zone.idle_basis == IdleBasis::Baseline);
            }
        }
    }
}

fn figment_value(config: &serde_json::Value) -> Result<figment::value::Value, String> {
    figment::value::Value::serialize(config).map_err(|e| e.to_string())
}
