//! A wattpipe with two components more: `price` names the price per kWh of the hour in every row,
//! `bill` adds up what each workload has cost.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, process::ExitCode, sync::Arc, time::Duration};
use wattpipe_pipeline::prelude::*;
/// Configuration of `price`: one price by day, one by night, hours in UTC.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct PriceConfig {
    /// Price of a kWh in `day_hours`.
    day: f64,
    /// Price of a kWh at other times.
    night: f64,
    /// First hour of the day and first hour of the night, 0 to 24.
    day_hours: [u64; 2],
}
impl Default for PriceConfig {
    fn default() -> Self {
        Self { day: 0.32, night: 0.24, day_hours: [6, 22] }
    }
}
impl Config for PriceConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        match self.day_hours {
            [from, until] if from < until && until <= 24 => vec![],
            _ => vec![ConfigProblem::at("day_hours", "expected hours in order, such as [6, 22]")],
        }
    }
}
struct Price(PriceConfig);
impl ProcessorComponent for Price {
    const NAME: &'static str = "price";
    const DOC: &'static str = "Adds the price of a kWh at that hour to every row.";
    const TAKES: BatchKind = BatchKind::Usage;
    const EMITS: BatchKind = BatchKind::Usage;
    type Config = PriceConfig;
    fn build(config: PriceConfig, _: &BuildContext) -> Result<Self, BuildError> {
        Ok(Self(config))
    }
}
impl Processor for Price {
    fn process(&mut self, batch: Batch) -> Result<Option<Batch>, ProcessorError> {
        let Batch::Usage(mut usage) = batch else { return Ok(None) };
        let usage_mut = Arc::make_mut(&mut usage); // copies only what another pipeline shares
        let hour = usage_mut.window.unix_ns(usage_mut.window.start) / 3_600_000_000_000 % 24;
        let day = (self.0.day_hours[0]..self.0.day_hours[1]).contains(&hour);
        let price = if day { self.0.day } else { self.0.night }.to_string();
        for row in &mut usage_mut.rows {
            Arc::make_mut(&mut row.attributes).set("energy.price", price.as_str());
        }
        Ok(Some(Batch::Usage(usage)))
    }
}
/// Configuration of `bill`.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct BillConfig {
    /// Attribute to group by; null: process.executable.name.
    by: Option<String>,
}
impl Config for BillConfig {}
struct Bill(String, BTreeMap<String, f64>);
impl ExporterComponent for Bill {
    const NAME: &'static str = "bill";
    const DOC: &'static str = "Prints what each workload has cost when the run ends.";
    type Config = BillConfig;
    fn build(config: BillConfig, _: &BuildContext) -> Result<Self, BuildError> {
        Ok(Self(config.by.unwrap_or("process.executable.name".into()), BTreeMap::new()))
    }
}
#[async_trait]
impl Exporter for Bill {
    async fn export(&mut self, batch: Batch) -> Result<(), ExportError> {
        let Batch::Usage(usage) = batch else { return Ok(()) };
        for row in &usage.rows {
            let price = row.attributes.get_str("energy.price").and_then(|p| p.parse::<f64>().ok());
            if let (Some(joules), Some(price)) = (usage.joules_total(row), price) {
                let name = row.attributes.get(&self.0).map_or("(none)".into(), |v| v.to_string());
                let known = self.1.len() < 1000 || self.1.contains_key(&name); // bounded
                let name = if known { name } else { "(others)".into() };
                *self.1.entry(name).or_default() += joules / 3.6e6 * price;
            }
        }
        Ok(())
    }
    async fn shutdown(&mut self, _: Duration) -> Result<(), ExportError> {
        self.1.iter().for_each(|(name, cost)| println!("{cost:.9} {name}"));
        Ok(())
    }
}

fn main() -> ExitCode {
    let agent = wattpipe_agent::Agent::builder().with_defaults();
    agent.processor::<Price>().exporter::<Bill>().run()
}

#[cfg(test)]
mod tests;
