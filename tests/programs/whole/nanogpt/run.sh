set -e
python data/letters/prepare.py
python train.py config/train_letters.py "$@"
