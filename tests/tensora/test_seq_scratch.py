import numpy as np
import accelera.tensora as ts
from accelera.tensora import nn
from accelera.tensora.models import GPT2, GPT2Config, Llama, LlamaConfig
def close(a,b): np.testing.assert_allclose(a.detach().cpu().numpy(), b.detach().cpu().numpy(), rtol=2e-4, atol=2e-5)
def test_dev(device):
    for name in ("LSTM","GRU"):
        m=getattr(nn,name)(4,6,num_layers=2,bidirectional=True); x=ts.random.randn(5,3,4); x.requires_grad=True
        y=m(x)[0]; (y*y).sum().backward(); g=x.grad
        p=nn.pack_sequence([x.detach()[:3,0],x.detach()[:,1]],enforce_sorted=False); q=nn.pad_packed_sequence(m(p)[0])[0]
        d=m.to(device); z=x.detach().to(device); z.requires_grad=True
        w=d(z)[0]; close(w,y); (w*w).sum().backward(); close(z.grad,g)
        p=nn.pack_sequence([z.detach()[:3,0],z.detach()[:,1]],enforce_sorted=False); close(nn.pad_packed_sequence(d(p)[0])[0],q)
    m=nn.MultiheadAttention(8,2,add_bias_kv=True,add_zero_attn=True); x=ts.random.randn(5,3,8); pad=ts.zeros((3,5),dtype='bool'); pad[1,3:]=True
    mask=ts.isinf(nn.Transformer.generate_square_subsequent_mask(5))
    for nw in (True,False):
        m.cpu() if hasattr(m,'cpu') else m.to('cpu')
        a=m(x,x,x,attn_mask=mask,key_padding_mask=pad,need_weights=nw)[0]
        m.to(device); z=x.to(device); b=m(z,z,z,attn_mask=mask.to(device),key_padding_mask=pad.to(device),need_weights=nw)[0]; close(a,b)
    ids=ts.random.randint(0,20,(2,6)); am=ts.ones((2,6),dtype='int64'); am[0,4:]=0
    for kind,cfg in ((GPT2,GPT2Config(vocab_size=20,n_positions=16,n_embd=8,n_layer=2,n_head=2)),(Llama,LlamaConfig(vocab_size=20,hidden_size=16,intermediate_size=24,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2))):
        m=kind(cfg).eval(); a,l=m(ids,am,targets=ids); t=m.generate(ids,4,temperature=0)
        m.to(device); b,k=m(ids.to(device),am.to(device),targets=ids.to(device)); close(a,b); k.backward()
        u=m.generate(ids.to(device),4,temperature=0); assert (u.cpu().numpy()==t.numpy()).all()
        m.generate(ids.to(device),4,top_k=3)
