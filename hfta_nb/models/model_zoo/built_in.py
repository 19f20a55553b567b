"""The list of the built-in families."""

from hfta_nb.models.model_zoo.bert import bert
from hfta_nb.models.model_zoo.cnn import cnn
from hfta_nb.models.model_zoo.dcgan import dcgan
from hfta_nb.models.model_zoo.dlrm import dlrm
from hfta_nb.models.model_zoo.gpt import gpt
from hfta_nb.models.model_zoo.mlp import mlp
from hfta_nb.models.model_zoo.mobilenet_v2 import mobilenet_v2
from hfta_nb.models.model_zoo.mobilenet_v3 import mobilenet_v3_large, mobilenet_v3_small
from hfta_nb.models.model_zoo.pointnet import pointnet_cls, pointnet_seg
from hfta_nb.models.model_zoo.recurrent_lm import gru_lm, lstm_lm
from hfta_nb.models.model_zoo.resnet import resnet18, resnet34, resnet50
from hfta_nb.models.model_zoo.transformer_lm import transformer_lm
from hfta_nb.models.model_zoo.unet import unet
from hfta_nb.models.model_zoo.vit import vit

BUILT_IN = (
    *(cnn, mlp),
    *(resnet18, resnet34, resnet50, mobilenet_v2, mobilenet_v3_large, mobilenet_v3_small, vit, unet),
    *(pointnet_cls, pointnet_seg),
    *(transformer_lm, gpt, bert, lstm_lm, gru_lm),
    *(dlrm, dcgan),
)
