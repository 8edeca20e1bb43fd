import logging
from pathlib import Path

import hydra
import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import digits

log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    log.info("digits %s\n%s", digits.__version__, OmegaConf.to_yaml(cfg))
    weights = np.ones(cfg.model.width)
    for epoch in range(cfg.epochs):
        weights -= cfg.lr * weights
        print(f"epoch {epoch + 1}/{cfg.epochs} - loss: {float(weights @ weights):.4f}")
    np.save(Path(HydraConfig.get().runtime.output_dir) / "weights.npy", weights)


if __name__ == "__main__":
    main()
